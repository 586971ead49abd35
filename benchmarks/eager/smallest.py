"""The smallest budget in which each policy really runs, over the true floor of the step."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.eager.networks import NETWORKS
from benchmarks.eager.process import rows_until_its_end
from benchmarks.eager.replaying import profile
from benchmarks.eager.running import POLICIES
from benchmarks.parts import Effort, Found, Part, Row, rows_of
from benchmarks.results_file import table
from benchmarks.runner import answer_of
from lowtide.units import format_B

KEYS = tuple(NETWORKS)
STEPS = 2
GRAIN = 0.02
_COLUMNS = ("network", "policy", "peak", "floor", "smallest", "over the floor", "of the peak", "recomputed there")


def _measure(name: str, effort: Effort) -> list[Row]:
    peak_B = answer_of("_eager_run", "peak", name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.jsonl"
        answer_of("_eager_run", "record", name, file)
        floor_B = profile(file)["floor_B"]
    rows = []
    for policy in POLICIES[-1:] if effort.quick else POLICIES:
        found, ended = rows_until_its_end("smallest", name, policy, peak_B, floor_B, STEPS)
        row = found[-1] if found else {"network": name, "policy": policy, "budget_B": None, "refused": ended}
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
