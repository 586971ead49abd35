"""Whole steps carried out at the smallest budget that has a plan: bits, and how far above the proved floor that is."""

from __future__ import annotations

import statistics
import time

import torch
from tests.stepping import Trained

import lowtide
from benchmarks.offload.subjects import SUBJECTS, Batch, Subject
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
HOST_B = 8 * 2**30
LINK = "8 GB/s"
WORK = 200_000


def plain_loop(subject: Subject, batch: Batch, steps: int) -> tuple[Trained, float]:
    """What the plain loop leaves, and the median seconds of its steps."""
    model = subject.build()
    optimizer = subject.optimizer(model)
    torch.manual_seed(7)
    losses, seconds_s = [], []
    for _ in range(steps):
        begin_s = time.perf_counter()
        loss = subject.loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds_s.append(time.perf_counter() - begin_s)
        losses.append(loss.detach())
    return Trained.of(losses, model, optimizer), statistics.median(seconds_s)


def smallest(step: lowtide.TrainStep, batch: Batch) -> lowtide.InfeasibleBudget:
    """What is said of a budget of one byte.

    Raises:
        RuntimeError: if nothing is.
    """
    step.set_budget(1)
    try:
        step(*batch[0], **batch[1])
    except lowtide.InfeasibleBudget as error:
        return error
    raise RuntimeError("a step ran in one byte")


def run_smallest(name: str, steps: int, limit_s: float) -> Row:
    """The row of a network, in a process of its own."""
    torch.set_num_threads(1)
    subject = SUBJECTS[name]
    batch = subject.batch()
    expected, plain_s = plain_loop(subject, batch, steps)
    model = subject.build()
    optimizer = subject.optimizer(model)
    step = lowtide.TrainStep(
        model, subject.loss_fn, optimizer, 1, host_budget=HOST_B, link=LINK, work=WORK, time_limit_s=limit_s
    )
    begin_s = time.perf_counter()
    said = smallest(step, batch)
    searched_s = time.perf_counter() - begin_s
    row = {"network": subject.name, "size": subject.size, "floor_B": said.floor_B, "smallest_B": said.smallest_B}
    row |= {"operators": said.operators[:2], "searched_s": searched_s, "steps": steps, "plain_s": plain_s}
    if said.smallest_B is None:
        return row | {"bits": None}
    step.set_budget(said.smallest_B)
    torch.manual_seed(7)
    losses, seconds_s = [], []
    for _ in range(steps):
        begin_s = time.perf_counter()
        losses.append(step(*batch[0], **batch[1]))
        seconds_s.append(time.perf_counter() - begin_s)
    apart = Trained.of(losses, model, optimizer).apart(expected)
    stats, plan = step.memory_stats(), step.plan
    assert plan is not None
    record = plan.record
    kept_B = sum(p.nbytes for p in model.parameters())
    kept_B += sum(t.nbytes for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor))
    return row | {
        "bits": not apart,
        "apart": apart[:5],
        "step_s": statistics.median(seconds_s[1:] or seconds_s),
        "predicted_s": record.time_s,
        "keep_all_B": record.keep_all_peak_B,
        "kept_B": kept_B,
        "hosted_B": record.graph.hosted_B,
        "sent_B": record.sent_B,
        "fetched_B": record.fetched_B,
        "reserved_B": stats.reserved_B,
        "departures": stats.misplaced_allocations,
        "spills": stats.spills,
        "host_peak_B": stats.host_peak_B,
    }


def _measure(name: str, effort: Effort) -> list[Row]:
    steps = 2 if effort.quick else STEPS
    row = answer_of(run_smallest, name, steps, min(effort.limit_s, MOST_s))
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
