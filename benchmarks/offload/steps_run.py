"""One network in a process of its own: its whole step at the smallest budget, beside the plain loop.

Prints one JSON object. `python -m benchmarks.offload.steps_run NAME STEPS LIMIT`.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch
from tests.stepping import Trained

import lowtide
from benchmarks.offload.subjects import SUBJECTS, Batch, Subject

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


def run(subject: Subject, steps: int, limit_s: float) -> dict[str, Any]:
    """The row of a network."""
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


def main(arguments: list[str]) -> int:
    """Runs and prints."""
    name, steps, limit_s = arguments
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(run(SUBJECTS[name], int(steps), float(limit_s))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
