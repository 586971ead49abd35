"""A GPT-style model several times the budget in a process of its own: whole steps in the arena beside unlimited ones.

Prints one JSON object. `python -m benchmarks.offload.sizes LAYERS WIDTH WORDS RATE_GBps ROUNDS LIMIT`.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

import lowtide
from benchmarks.offload.subjects import Batch, Subject, gpt2
from benchmarks.stopwatch import interleave, ratio, spread
from lowtide.device.heap import keep_warm

TIMES = 4  # what lives through a step over the budget
_TOKENS = (2, 128)


def subject_of(layers: int, width: int, words: int) -> Subject:
    """The model and its batch."""

    def batch() -> Batch:
        tokens = torch.randint(2, words, _TOKENS, generator=torch.Generator().manual_seed(1))
        return (), {"input_ids": tokens, "labels": tokens.clone()}

    size = f"{layers} layers of {width}, {words} words, {_TOKENS[0]} x {_TOKENS[1]} tokens"
    return Subject("gpt2", size, lambda: gpt2(layers, width, words), batch, adamw=True, inside=True)


def run(subject: Subject, rate_GBps: float, rounds: int, limit_s: float) -> dict[str, Any]:
    """The row."""
    batch = subject.batch()
    kept_B = 4 * sum(p.nbytes for p in subject.build().parameters())  # weights, gradients, Adam's two moments
    budget_B = kept_B // TIMES
    inside, inside_model, step = _made(subject, budget_B, batch, limit_s, host_budget="8GiB", link=f"{rate_GBps} GB/s")
    free, free_model, _ = _made(subject, "12GiB", batch, limit_s)
    keep_warm()
    for call in (inside, free):
        torch.manual_seed(7)
        call()
    equal = all(torch.equal(a, b) for a, b in zip(inside_model.parameters(), free_model.parameters(), strict=True))
    before = lowtide.transfers(step._objective).observed
    times = interleave({"inside": lambda: inside, "free": lambda: free, "free again": lambda: free}, rounds)
    after, stats, plan = lowtide.transfers(step._objective).observed, step.memory_stats(), step.plan
    assert plan is not None
    record = plan.record
    steps = rounds + 2
    return {
        "size": subject.size,
        "rate_GBps": rate_GBps,
        "kept_B": kept_B,
        "budget_B": budget_B,
        "floor_B": record.floor_B,
        "reserved_B": stats.reserved_B,
        "hosted_B": record.graph.hosted_B,
        "bits": equal,
        "departures": stats.misplaced_allocations,
        "free_s": times["free"].median_s,
        "inside_s": times["inside"].median_s,
        "ratio": ratio(times["inside"], times["free"]),
        "spread": spread(times["free again"], times["free"]),
        "predicted_s": record.time_s,
        "predicted_stall_s": record.stall_s,
        "stall_s": (after.stalled_s - before.stalled_s) / steps,
        "sent_B": (after.to_host.moved_B - before.to_host.moved_B) / steps,
        "fetched_B": (after.from_host.moved_B - before.from_host.moved_B) / steps,
        "host_runs": after.host_runs,
    }


def _made(
    subject: Subject, budget: int | str, batch: Batch, limit_s: float, **moves: Any
) -> tuple[Callable[[], torch.Tensor], torch.nn.Module, lowtide.TrainStep]:
    model = subject.build()
    step = lowtide.TrainStep(model, None, subject.optimizer(model), budget, work=200_000, time_limit_s=limit_s, **moves)
    return (lambda: step(*batch[0], **batch[1])), model, step


def main(arguments: list[str]) -> int:
    """Runs and prints."""
    layers, width, words, rate, rounds, limit_s = arguments
    torch.set_num_threads(1)
    subject = subject_of(int(layers), int(width), int(words))
    sys.stdout.write(json.dumps(run(subject, float(rate), int(rounds), float(limit_s))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
