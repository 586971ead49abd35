"""The smallest budget in which each policy really runs, over the true floor of the step."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.eager.networks import NETWORKS
from benchmarks.eager.replaying import profile
from benchmarks.eager.running import LIMITS, POLICIES, Loop, peak_of, prepare, recomputed, record_of
from benchmarks.parts import Effort, Found, Part, Row, rows_of
from benchmarks.results_file import table
from benchmarks.runner import HandOver, answer_of, run
from lowtide.units import format_B

KEYS = tuple(NETWORKS)
STEPS = 2
GRAIN = 0.02
"""Of the peak: how finely the smallest budget is sought."""
_COLUMNS = ("network", "policy", "peak", "floor", "smallest", "over the floor", "of the peak", "recomputed there")


def smallest(hand_over: HandOver, name: str, policy: str, peak_B: int, floor_B: int, steps: int) -> None:
    """The smallest budget in which all steps end, by halving between the floor and the peak, in a process of its own.

    The last row counts.
    """
    prepare()
    grain_B = int(peak_B * GRAIN)
    low, high = floor_B // grain_B - 1, peak_B // grain_B + 2
    hand_over(_tried(name, policy, high * grain_B, steps))
    while high - low > 1:
        middle = (low + high) // 2
        row = _tried(name, policy, middle * grain_B, steps)
        if row["refused"]:
            low = middle
        else:
            high = middle
            hand_over(row)


def _tried(name: str, policy: str, budget_B: int, steps: int) -> dict[str, Any]:
    found = Loop(NETWORKS[name], policy, budget_B, steps).run()
    row = {"network": name, "policy": policy, "budget_B": budget_B, "refused": found["refused"]}
    return row if found["refused"] else row | {"recomputed": recomputed(found, first=0)}


def _measure(name: str, effort: Effort) -> list[Row]:
    peak_B = answer_of(peak_of, name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.jsonl"
        answer_of(record_of, name, str(file))
        floor_B = profile(file)["floor_B"]
    rows = []
    for policy in POLICIES[-1:] if effort.quick else POLICIES:
        ended = run(smallest, name, policy, peak_B, floor_B, STEPS, limits=LIMITS)
        none = {"network": name, "policy": policy, "budget_B": None, "refused": ended.failure}
        row = ended.rows[-1] if ended.rows else none
        rows.append(row | {"loop_B": peak_B, "floor_B": floor_B})
    return rows


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, KEYS)
    if not rows:
        return []
    note = (
        f"{STEPS} steps with the optimizer, to {GRAIN:.0%} of the peak, by halving. Floor: the most that one operator takes with its arguments, "
        "its results and everything that is never dropped (weights, gradients that are there, the optimizer's state, the batch), "
        "without kernels' workspaces. The rows of DTR, DTE and Coop of resnet50, unet, treelstm are of an earlier run."
    )
    return [table("The smallest budget", _COLUMNS, [_cells(r) for r in rows], len(rows), note)]


def _cells(row: Row) -> list[object]:
    head = [row["network"], row["policy"], format_B(row["loop_B"]), format_B(row["floor_B"])]
    if row["refused"]:
        return [*head, "no room", *["-"] * 3]
    smallest_B = row["budget_B"]
    return [
        *head,
        format_B(smallest_B),
        f"{smallest_B / row['floor_B']:.2f}",
        f"{smallest_B / row['loop_B']:.2f}",
        f"{row['recomputed']:.0%}",
    ]


SMALLEST_PART = Part("smallest", KEYS, _measure, _tables)
