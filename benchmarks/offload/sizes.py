"""A GPT-style model several times the budget: whole steps in the arena beside unlimited ones.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import lowtide
from benchmarks.offload.subjects import Batch, Subject, gpt2
from benchmarks.parts import Effort, Found, Part, Row, rows_of
from benchmarks.results_file import MissingRow, table
from benchmarks.runner import answer_of
from benchmarks.stopwatch import interleave, ratio, spread
from lowtide.device.heap import keep_warm
from lowtide.units import format_B

_SIZES = {"gpt2, 4 layers": (4, 512, 2048), "gpt2, 8 layers": (8, 768, 4096)}
_SIZE_RATES = (2, 8)
SIZE_KEYS = tuple(f"{name}, {rate} GB/s" for name in _SIZES for rate in _SIZE_RATES)
MOST_s = 20.0  # of planning, per budget
_SIZE_COLUMNS = (
    "model", "link each way", "weights, gradients, Adam", "budget", "proved floor", "reserved", "at home on the host", "bits equal",
    "step unlimited", "step inside", "ratio", "unlimited against itself", "predicted", "stall predicted", "stall measured",
    "sent, fetched per step", "of the link's time", "updates on the host",
)  # fmt: skip
TIMES = 4  # what lives through a step over the budget
_TOKENS = (2, 128)


def subject_of(layers: int, width: int, words: int) -> Subject:
    """The model and its batch."""

    def batch() -> Batch:
        tokens = torch.randint(2, words, _TOKENS, generator=torch.Generator().manual_seed(1))
        return (), {"input_ids": tokens, "labels": tokens.clone()}

    size = f"{layers} layers of {width}, {words} words, {_TOKENS[0]} x {_TOKENS[1]} tokens"
    return Subject("gpt2", size, lambda: gpt2(layers, width, words), batch, adamw=True, inside=True)


def run_inside(layers: int, width: int, words: int, rate_GBps: float, rounds: int, limit_s: float) -> Row:
    """The row, in a process of its own."""
    torch.set_num_threads(1)
    subject = subject_of(layers, width, words)
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


def _measure_size(key: str, effort: Effort) -> list[Row]:
    name, _, rate = key.rpartition(", ")
    layers, width, words = _SIZES[name]
    rounds = 2 if effort.quick else effort.rounds
    row = answer_of(
        run_inside, layers, width, words, float(rate.split()[0]), rounds, min(MOST_s, effort.limit_s), quiet=False
    )
    if not row["bits"] or row["departures"]:
        raise MissingRow(f"{key}: {row}")
    return [row]


def _sizes(found: Found) -> list[str]:
    rows = rows_of(found, SIZE_KEYS)
    if not rows:
        return []
    note = (
        "`lowtide.TrainStep` with AdamW on transformers' GPT-2, dropout on, one thread of compute (copies and updates on the host run on another core), in an arena of a quarter of what weights, "
        "gradients and Adam's two moments take; medians of interleaved steps in one process, beside the same whole step with "
        "12 GiB. Bits: parameters after steps from the same start, `torch.equal`. Of the link's time: bytes sent and fetched over "
        "what both directions could move in the measured step."
    )
    return [table("A model four times the budget", _SIZE_COLUMNS, [_size_cells(r) for r in rows], len(rows), note)]


def _size_cells(row: Row) -> list[str]:
    used = (row["sent_B"] + row["fetched_B"]) / (2 * row["rate_GBps"] * 1e9 * row["inside_s"])
    return [
        row["size"],
        f"{row['rate_GBps']:g} GB/s",
        format_B(row["kept_B"]),
        format_B(row["budget_B"]),
        format_B(row["floor_B"]),
        format_B(row["reserved_B"]),
        format_B(row["hosted_B"]),
        "yes",
        f"{row['free_s']:.2f} s",
        f"{row['inside_s']:.2f} s",
        f"{row['ratio']:.3f}",
        row["spread"],
        f"{row['predicted_s']:.2f} s",
        f"{row['predicted_stall_s'] * 1e3:.1f} ms",
        f"{row['stall_s'] * 1e3:.1f} ms",
        f"{format_B(row['sent_B'])}, {format_B(row['fetched_B'])}",
        f"{used:.0%}",
        str(row["host_runs"]),
    ]


SIZE_PART = Part("size", SIZE_KEYS, _measure_size, _sizes)
