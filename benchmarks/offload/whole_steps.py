"""Whole steps carried out at the smallest budget that has a plan: bits, and how far above the proved floor that is."""

from __future__ import annotations

from benchmarks.offload.subjects import SUBJECTS
from benchmarks.parts import Effort, Found, Part, Row, rows_of, say
from benchmarks.results_file import MissingRow, table
from benchmarks.runner import answer_of
from lowtide.units import format_B

STEPS = 10
MOST_s = 60.0  # of planning, per budget
_COLUMNS = (
    "network", "batch", "keep-all", "weights and state", "proved floor", "smallest budget run", "over the floor",
    "reserved", "at home on the host", "sent, fetched per step", "steps", "bits equal", "departures", "step, plain", "step there",
)  # fmt: skip


def _measure(name: str, effort: Effort) -> list[Row]:
    steps = 2 if effort.quick else STEPS
    row = answer_of("_pool_steps_run", name, steps, min(effort.limit_s, MOST_s))
    say(f"  {name}: {row}")
    if row["smallest_B"] is None:
        return [row]
    if not row["bits"] or row["departures"] or row["spills"]:
        raise MissingRow(f"{name}: {row}")
    return [row]


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, tuple(SUBJECTS))
    if not rows:
        return []
    note = (
        "`lowtide.TrainStep` with SGD and momentum (convolutional networks) or AdamW (transformers), dropout on, float32, one "
        "thread; values, weights and optimizer state may move to 8 GiB of host memory at 8 GB/s each way. The smallest budget is "
        "the one that the error for a budget of one byte names, and it ran: reserved is what the arena held at most. The floor "
        "is the largest working set of any operator, with the implementation that takes least; updates may run on the host there, "
        "and in the smallest plan all do that can. There everything is away whenever it is not used, each operator with many "
        "implementations has the one that takes least, and what is overwritten is made again if it is read once more. Bits: losses, parameters, buffers, optimizer state and "
        "generator after all steps, `torch.equal` to the plain loop. Seconds: medians, one after the other, not interleaved, on a "
        "machine with other work: rough."
    )
    return [table("Whole steps at the smallest budget", _COLUMNS, [_cells(r) for r in rows], len(rows), note)]


def _cells(row: Row) -> list[str]:
    if row["smallest_B"] is None:
        return [row["network"], row["size"], *["-"] * 2, format_B(row["floor_B"]), "no plan found", *["-"] * 9]
    return [
        row["network"],
        row["size"],
        format_B(row["keep_all_B"]),
        format_B(row["kept_B"]),
        format_B(row["floor_B"]),
        format_B(row["smallest_B"]),
        f"{row['smallest_B'] / row['floor_B']:.3f}",
        format_B(row["reserved_B"]),
        format_B(row["hosted_B"]),
        f"{format_B(row['sent_B'])}, {format_B(row['fetched_B'])}",
        str(row["steps"]),
        "yes" if row["bits"] else "NO",
        str(row["departures"]),
        f"{row['plain_s']:.2f} s",
        f"{row['step_s']:.2f} s",
    ]


STEPS_PART = Part("steps", tuple(SUBJECTS), _measure, _tables)
