"""Loops of one network in a process of their own. Prints one JSON value.

`python -m benchmarks._eager_run peak NAME`, `... bits NAME POLICY SHARES STEPS RUNTIME`, `... executed NAME POLICY SHARES
STEPS`, `... smallest NAME POLICY`, `... record NAME FILE`; SHARES a JSON list of shares of the loop's own peak.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from typing import Any

import torch
from tests import torchvision_shim
from tests.dynamic.comparison import differences, train

torchvision_shim.install()

import lowtide  # noqa: E402
from benchmarks.eager_networks import NETWORKS  # noqa: E402
from benchmarks.eager_running import UNLIMITED_B, Loop, left, peak_B, recomputed  # noqa: E402
from lowtide.device.heap import keep_warm  # noqa: E402

GRAIN = 0.01  # of the peak: how finely the smallest budget is sought
RECORDED = 3  # steps before the one that is recorded


def peak(name: str) -> int:
    """Of the loop without a limit."""
    return peak_B(NETWORKS[name])


def bits(name: str, policy: str, peak_B: str, shares: str, steps: str, runtime: str) -> list[dict[str, Any]]:
    """Digests of everything after every step, beside those of plain eager."""
    plain = train(NETWORKS[name], int(steps))
    rows = []
    for share in json.loads(shares):
        budget_B = int(int(peak_B) * share)
        found = Loop(NETWORKS[name], policy, budget_B, int(steps), runtime, digests=True).run()
        row = {"network": name, "policy": policy, "share": share, "budget_B": budget_B, "refused": found["refused"]}
        if not found["refused"]:
            different = differences(plain, left(found))
            row |= {"different": len(different), "first": different[:3], "compared": sum(map(len, plain.steps))}
            row |= found["counts"][-1]
        rows.append(row)
    return rows


def executed(name: str, policy: str, peak_B: str, shares: str, steps: str) -> list[dict[str, Any]]:
    """Recomputation, search and fragmentation; seconds beside the same loop without a limit, and without lowtide."""
    network, count = NETWORKS[name], int(steps)
    keep_warm()
    rows = []
    for share in json.loads(shares):
        budget_B = int(int(peak_B) * share)
        found = Loop(network, policy, budget_B, count).run()
        row = {"network": name, "policy": policy, "share": share, "budget_B": budget_B, "refused": found["refused"]}
        if not found["refused"]:
            first, last = found["counts"][1], found["counts"][-1]
            row |= {
                "recomputed": recomputed(found),
                "fragmentation": last["fragmentation"],
                "step_s": statistics.median(found["seconds_s"][2:]),
                "search_s": (last["search_s"] - first["search_s"]) / (count - 2),
                "searches": (last["searches"] - first["searches"]) / (count - 2),
                "calls": (last["calls"] - first["calls"]) / (count - 2),
                "evictions": (last["evictions"] - first["evictions"]) / (count - 2),
                "moved_B": (last["moved_B"] - first["moved_B"]) / (count - 2),
                "peak_B": last["peak_B"],
            }
        rows.append(row)
    return rows


def smallest(name: str, policy: str, peak_B: str, floor_B: str, steps: str) -> dict[str, Any]:
    """The smallest budget in which all steps end, by halving between the floor and the peak."""
    grain_B = int(int(peak_B) * GRAIN)
    low, high = int(floor_B) // grain_B - 1, int(peak_B) // grain_B + 2
    most = Loop(NETWORKS[name], policy, high * grain_B, int(steps)).run()
    if most["refused"]:
        return {"network": name, "policy": policy, "budget_B": None, "refused": most["refused"]}
    last, why = most, ""
    while high - low > 1:
        middle = (low + high) // 2
        found = Loop(NETWORKS[name], policy, middle * grain_B, int(steps)).run()
        if found["refused"]:
            low, why = middle, found["refused"]
        else:
            high, last = middle, found
    return {
        "network": name, "policy": policy, "budget_B": high * grain_B, "refused": why,
        "recomputed": recomputed(last, first=0),
    }  # fmt: skip


def record(name: str, file: str) -> bool:
    """Writes the trace of one step, the fourth one, so that the optimizer has its state."""
    network = NETWORKS[name]
    module, optimizers = network.start()
    for number, batch in enumerate(network.batches(RECORDED + 1)):
        if number < RECORDED:
            network.step(module, optimizers, batch)
            continue
        with lowtide.eager(UNLIMITED_B, policy="lru", model=module, optimizer=optimizers, record=file):
            network.step(module, optimizers, batch)
    return True


MODES = {run.__name__: run for run in (peak, bits, executed, smallest, record)}


def main(arguments: list[str]) -> int:
    """Runs and prints."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", lowtide.BudgetWarning)
    mode, *rest = arguments
    sys.stdout.write(json.dumps(MODES[mode](*rest)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
