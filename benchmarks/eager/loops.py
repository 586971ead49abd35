"""Loops of one network in a process of their own. Prints one JSON value.

`python -m benchmarks.eager.loops peak NAME`, `... executed NAME POLICY PEAK SHARES STEPS`, `... smallest NAME POLICY PEAK FLOOR
STEPS`, `... record NAME FILE`; SHARES a JSON list of shares of the loop's own peak.

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
from tests.eager_engine.comparison import Left, differences, train

torchvision_shim.install()

import lowtide  # noqa: E402
from benchmarks.eager.networks import NETWORKS  # noqa: E402
from benchmarks.eager.running import UNLIMITED_B, Loop, left, moved, peak_B, recomputed  # noqa: E402
from lowtide.device.heap import keep_warm  # noqa: E402

WARM = 3  # steps before those that are counted
GRAIN = 0.02  # of the peak: how finely the smallest budget is sought
RECORDED = 3  # steps before the one that is recorded


def peak(name: str) -> int:
    """Of the loop without a limit."""
    return peak_B(NETWORKS[name])


def executed(name: str, policy: str, peak_B: str, shares: str, steps: str) -> list[dict[str, Any]]:
    """Every share in turn: digests beside those of plain eager, recomputation, search, fragmentation, seconds."""
    network, count = NETWORKS[name], int(steps)
    plain = train(network, count)
    keep_warm()
    free = Loop(network, policy, UNLIMITED_B, WARM + 3).run()
    rows: list[dict[str, Any]] = []
    for share in json.loads(shares):
        budget_B = int(int(peak_B) * share)
        found = Loop(network, policy, budget_B, count, digests=True).run()
        row = {"network": name, "policy": policy, "share": share, "budget_B": budget_B, "refused": found["refused"]}
        if not found["refused"]:
            row |= compared(plain, found) | counted(found) | {"free_s": statistics.median(free["seconds_s"][WARM:])}
        rows.append(row)
        sys.stdout.write(json.dumps(rows) + "\n")
        sys.stdout.flush()
    return rows


def compared(plain: Left, found: dict[str, Any]) -> dict[str, Any]:
    """What differs from plain eager."""
    different = differences(plain, left(found))
    return {"different": len(different), "first": different[:3], "compared": sum(map(len, plain.steps))}


def counted(found: dict[str, Any]) -> dict[str, Any]:
    """Of the steps after the warm ones, and per step."""
    first, last, steps = found["counts"][WARM - 1], found["counts"][-1], len(found["counts"]) - WARM
    per_step = ("search_s", "searches", "calls", "evictions", "reruns", "moved_B", "retries")
    return {name: (last[name] - first[name]) / steps for name in per_step} | {
        "recomputed": recomputed(found, WARM),
        "moved": moved(found, WARM),
        "fragmentation": last["fragmentation"],
        "step_s": statistics.median(found["seconds_s"][WARM:]),
        "departures": last["departures"],
        "peak_B": last["peak_B"],
    }


def smallest(name: str, policy: str, peak_B: str, floor_B: str, steps: str) -> list[dict[str, Any]]:
    """The smallest budget in which all steps end, by halving between the floor and the peak; the last row counts."""
    grain_B = int(int(peak_B) * GRAIN)
    low, high = int(floor_B) // grain_B - 1, int(peak_B) // grain_B + 2
    rows = [_tried(name, policy, high * grain_B, int(steps))]
    while high - low > 1:
        middle = (low + high) // 2
        row = _tried(name, policy, middle * grain_B, int(steps))
        if row["refused"]:
            low = middle
        else:
            high = middle
            rows.append(row)
            sys.stdout.write(json.dumps(rows) + "\n")
            sys.stdout.flush()
    return rows


def _tried(name: str, policy: str, budget_B: int, steps: int) -> dict[str, Any]:
    found = Loop(NETWORKS[name], policy, budget_B, steps).run()
    row = {"network": name, "policy": policy, "budget_B": budget_B, "refused": found["refused"]}
    return row if found["refused"] else row | {"recomputed": recomputed(found, first=0)}


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


MODES = {run.__name__: run for run in (peak, executed, smallest, record)}


def main(arguments: list[str]) -> int:
    """Runs and prints."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", lowtide.BudgetWarning)
    mode, *rest = arguments
    sys.stdout.write(json.dumps(MODES[mode](*rest)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
