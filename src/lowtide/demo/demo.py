"""The demo: a GPT-2 trained plainly, then the same from the same seed inside a budget, and every bit compared.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

import lowtide
from lowtide.demo.model import BATCH, LENGTH, build_model
from lowtide.demo.text import Batches, read_sources
from lowtide.demo.training import Training, equal_states
from lowtide.device.heap import keep_warm
from lowtide.device.observer import Observation
from lowtide.ir.plan import PlanRecord
from lowtide.plan_cache.lookup import PlanLookup
from lowtide.plan_cache.store import PlanCache
from lowtide.profile.cache import ProfileCache
from lowtide.report.answer import answer
from lowtide.report.comparison import Comparison, comparison_table, loss_table
from lowtide.report.explain import labelled
from lowtide.report.headline import headline
from lowtide.report.memory_picture import write_memory

ROUNDS = 5


def run_demo(*, steps: int, budget: str, out: Path, seed: int = 0, rounds: int = ROUNDS) -> bool:
    """Runs the demo and writes `plan.json` and `memory.svg`.

    Arguments:
        steps: optimizer steps on each side.
        budget: as `lowtide.fit` takes it.
        out: an existing folder, or one to make.
        seed: of weights, batches and dropout.
        rounds: pairs of timed steps, plain and lowtide in turn.

    Returns: whether every promise was kept.

    Raises:
        InfeasibleBudget: if the budget is too small; nothing has been written.
    """
    console = Console(highlight=False)
    keep_warm()  # both sides: else page faults decide the comparison
    out.mkdir(parents=True, exist_ok=True)
    batches = Batches(read_sources(), batch=BATCH, length=LENGTH, seed=seed)
    plain, ours = (_training(seed, batches) for _ in range(2))
    count = sum(p.numel() for p in plain.model.parameters())
    console.print(f"GPT-2 of {count / 1e6:.1f} M parameters, batch {BATCH} x {LENGTH} bytes of Python's own sources")
    with _progress(console) as progress:
        plain_losses = _train(progress, "plain PyTorch", plain, steps, seed)
        expected = plain.snapshot()
        losses = _fit_and_train(progress, ours, budget, steps, seed)
    states = equal_states(ours.snapshot(), expected)
    handle: Any = ours.model
    plan = handle.lowtide.plan
    record: PlanRecord = plan.record
    with console.status("one observed step on each side"):
        (plain_level_B, plain_seen), (level_B, seen) = plain.observe(steps), ours.observe(steps)
    enforced = record.budget_kind == "enforced"
    if enforced:  # the budget counts the optimizer's state
        plain_level_B, level_B = plain_level_B + plain.state_B(), level_B + ours.state_B()
    with console.status("timing, plain and lowtide in turn"):
        plain_times_s, times_s, spread = _times(plain, ours, rounds, steps + 1)
    stats = lowtide.memory_stats(ours.model)
    run = Comparison(
        name="predicted and observed",
        budget_B=record.budget_B,
        budget_kind=record.budget_kind,
        persistent_B=record.graph.persistent_B + record.outside_B,
        predicted_peak_B=record.peak_B,
        observed_peak_B=level_B + seen.peak_B,
        plain_peak_B=plain_level_B + plain_seen.peak_B,
        predicted_reserved_B=record.reserved_B if enforced else 0,
        observed_reserved_B=stats.reserved_B,
        misplaced_allocations=stats.misplaced_allocations + stats.spills,
        predicted_time_s=record.time_s,
        keep_all_time_s=record.keep_all_time_s,
        observed_time_s=statistics.median(times_s),
        plain_time_s=statistics.median(plain_times_s),
        spread=spread,
        bound_s=record.outcome.bound_s,
        bound_class=record.outcome.bound_class,
        losses=losses,
        plain_losses=plain_losses,
        states_equal=tuple(states.items()),
    )
    plan.save(out / "plan.json")
    logs = {"plain PyTorch, observed": _log(plain_level_B, plain_seen), "the plan, observed": _log(level_B, seen)}
    write_memory(record, out / "memory.svg", observed=logs)
    return _tell(console, run, record, out)


def _training(seed: int, batches: Batches) -> Training:
    model = build_model(seed)
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-3), batches)


def _progress(console: Console) -> Progress:
    note = TextColumn("{task.fields[note]}")
    text = TextColumn("{task.description:<24}")
    return Progress(text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), note, console=console)


def _fit_and_train(progress: Progress, side: Training, budget: str, steps: int, seed: int) -> tuple[float, ...]:
    """The first step captures, measures and plans before it runs; the bar says so."""

    def watch(state: Any) -> None:
        progress.update(progress.task_ids[-1], note=f"planning: {state.stage}, {state.elapsed_s:.1f} s")

    handle: Any = lowtide.fit(side.model, budget=budget, optimizer=side.optimizer, watch=watch)
    with tempfile.TemporaryDirectory(prefix="lowtide-demo-") as folder:
        # Made anew: what an earlier process found while the machine was busy would spoil the prediction.
        handle.lowtide.session.cache = ProfileCache(Path(folder))
        handle.lowtide.session.lookup = PlanLookup(PlanCache(limit_B=0))
        return _train(progress, f"lowtide, {budget}", side, steps, seed, "capturing and measuring")


def _train(progress: Progress, name: str, side: Training, steps: int, seed: int, note: str = "") -> tuple[float, ...]:
    task = progress.add_task(name, total=steps, note=note)
    return side.train(steps, seed, lambda _, loss: progress.update(task, advance=1, note=f"loss {loss:.4f}"))


def _times(plain: Training, ours: Training, rounds: int, start: int) -> tuple[list[float], list[float], float]:
    """Warm seconds per step on each side, interleaved, and the spread of plain against itself.

    Plain runs twice per round; the spread is what the ratio of its two medians differs from 1.
    """
    plain_times_s, times_s, again_s = list[float](), list[float](), list[float]()
    for index in range(start, start + rounds):
        plain_times_s.append(plain.time_s(index))
        times_s.append(ours.time_s(index))
        again_s.append(plain.time_s(index))
    spread = abs(statistics.median(again_s) / statistics.median(plain_times_s) - 1.0)
    return plain_times_s + again_s, times_s, spread


def _log(level_B: int, seen: Observation) -> list[tuple[float, int]]:
    """Absolute live bytes after each event."""
    now_B, log = level_B, list[tuple[float, int]]()
    for event in seen.events:
        now_B += event.size_B
        log.append((event.order, now_B))
    return log


def _tell(console: Console, run: Comparison, record: PlanRecord, out: Path) -> bool:
    console.print()
    console.print(labelled(answer(headline(record)), console.width))
    console.print()
    console.print(loss_table(run))
    console.print()
    console.print(comparison_table(run))
    console.print()
    console.print(f"wrote {out / 'plan.json'} and {out / 'memory.svg'}", markup=False, soft_wrap=True)
    for broken in run.broken:
        console.print(Text(f"BROKEN: {broken}", style="bold red"))
    if not run.broken:
        console.print(Text("Every loss, parameter and generator bit is equal, inside the budget.", style="bold green"))
    return not run.broken
