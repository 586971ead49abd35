"""Time and peak of compiled training steps: torch.compile as people use it, and its kernels under lowtide's budgets.

Plain eager; `torch.compile`; the same with `activation_memory_budget` swept; the same with a checkpoint per block; lowtide
with eager kernels and lowtide with Inductor's, each inside the peak that `torch.compile` needs and inside shares of it.
Dropout is on.

`python -m benchmarks.compiled.compiled [--only NAME ...] [--rounds N]` writes `results/compiled.md` and `.json`; networks that
a run leaves out keep the rows of an earlier one. It fails if a row is missing, or if the bits of lowtide's compiled steps are
not those of `torch.compile`.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import argparse
import functools
import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lowtide
from benchmarks.executed.hard_budget_prediction import mb, resident_B
from benchmarks.executed.rivals import Outcome, Rival, eager
from benchmarks.networks import SUBJECTS, Subject, loss_in
from benchmarks.results_file import MissingRow, fresh_profiles, read_numbers, table, write
from benchmarks.runner import answer_of
from benchmarks.stopwatch import Times, interleave, ratio, spread
from lowtide.device import shim
from lowtide.device.heap import keep_warm
from lowtide.device.observer import observe
from lowtide.results.plan import Plan
from lowtide.session.dynamo_call import compiled_call

RESULTS = "compiled"
NETWORKS = ("gpt2", "unet", "resnet50")
USUAL = ("gpt2", "unet")
BUDGETS = (0.7, 0.4, 0.0)
"""Of torch's partitioner: what may be saved, as a share; 1 is torch.compile itself."""
SHARES = (1.0, 0.75, 0.5, 0.0)
"""Of torch.compile's peak, as budgets for lowtide; 0 for the smallest."""
COLUMNS = {
    "network": "network", "variant": "variant", "peak": "peak, MB", "time": "time / torch.compile", "right": "result",
    "overhead": "overhead; bound", "first": "first step, s",
}  # fmt: skip
NOTE = (
    "Bytes outside parameters, buffers and batch. Peak: of torch's own, live bytes of a warm forward and backward, from allocator "
    "events; of lowtide, bytes reserved in its arena, holes and what is set aside included. Times: medians of interleaved "
    "rounds in one process, everything warm. Result: one step from the same state and seed, `torch.equal` in loss, gradients, buffers "
    "and generator: of eager kernels against eager, of compiled ones against torch.compile; or the norm of the difference over the "
    "norm. Overhead and proved bound are a plan's own, over keeping everything. First step: with empty caches of Inductor's and of "
    "lowtide's for the first of a kind; lowtide's compiled plans share one compilation."
)
Row = dict[str, Any]


class Comparison:
    """One network, with what eager and torch.compile make of its first step."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.batch = subject, subject.batch()
        self.begun_s = time.perf_counter()
        self.firsts: dict[str, float] = {}
        self.eager = eager(subject)
        self.start = {k: v.clone() for k, v in self.eager.module.state_dict().items()}
        self.resident_B = resident_B(self.eager.module, self.batch)

    def say(self, text: str) -> None:
        """Progress, with the seconds since this network began."""
        sys.stderr.write(f"  {self.subject.name} {time.perf_counter() - self.begun_s:6.1f} s: {text}\n")
        sys.stderr.flush()

    def outcome(self, module: nn.Module, step: Callable[[], torch.Tensor]) -> Outcome:
        """One step from the start."""
        return Outcome.of(module, step, self.start)

    def compiled(self, name: str, *, budget: float = 1.0, checkpointed: bool = False) -> Rival:
        """torch.compile, with a code object of its own: Dynamo would serve equal models with the first one's code."""
        model = self.subject.build()
        if checkpointed:
            for block in self.subject.blocks(model):
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        model._compiled_call_impl = compiled_call(model, "inductor", None, compiler="inductor")  # type: ignore[assignment]
        rival = Rival(name, model, reassociates=True)
        begin_s = time.perf_counter()
        with torch._functorch.config.patch(activation_memory_budget=budget):
            rival.step(self.batch)
        self.firsts[name] = time.perf_counter() - begin_s
        model.zero_grad(set_to_none=True)
        self.say(f"{name}: first step {self.firsts[name]:.0f} s")
        return rival

    def peak_B(self, rival: Rival) -> int:
        """Most bytes that one warm step takes outside parameters, buffers and batch, by torch's allocator."""
        rival.step(self.batch)
        rival.module.zero_grad(set_to_none=True)
        gc.collect()
        with observe() as seen:
            rival.step(self.batch)
        rival.module.zero_grad(set_to_none=True)
        return seen.peak_B


class Planned:
    """lowtide with one kind of kernels, at budgets that are shares of another's peak."""

    def __init__(self, at: Comparison, compiler: str, right: Outcome) -> None:
        self.at, self.compiler, self.right = at, compiler, right
        self.model = lowtide.fit(at.subject.build(), budget="100% of plain", compiler=compiler)
        self.plans: dict[str, Plan] = {}
        self.rows: dict[str, Row] = {}
        begin_s = time.perf_counter()
        self.step()
        self.first_s = time.perf_counter() - begin_s
        times = self.model.lowtide.compile_times
        self.first = f"{self.first_s:.0f}" + (f" (Inductor {times.inductor_s:.0f})" if times.graphs else "")
        self.keep_all_B = self.model.lowtide.plan.reserved_B
        self.model.zero_grad(set_to_none=True)
        at.say(f"lowtide, {compiler} kernels: first step {self.first} s")

    def step(self) -> torch.Tensor:
        """Forward and backward."""
        loss = loss_in(self.model(**self.at.batch))
        loss.backward()
        return loss.detach()

    def at_budget(self, name: str, budget_B: int) -> int | None:
        """Trains a step inside a budget; returns the smallest one where that is too small."""
        self.model.lowtide.set_budget(budget_B)
        try:
            found = self.at.outcome(self.model, self.step)
        except lowtide.InfeasibleBudget as error:
            return error.smallest_B
        plan = self.plans[name] = self.model.lowtide.plan
        record = plan.record
        self.rows[name] = {
            "peak": mb(record.reserved_B - self.at.resident_B), "right": found.difference(self.right),
            "overhead": f"{record.overhead:.1%}; {max(0.0, record.bound_overhead):.1%}", "first": self.first,
        }  # fmt: skip
        self.at.say(f"{name}: {self.rows[name]['right']}, {record.overhead:.1%}")
        return None

    def all_budgets(self, peak_B: int) -> None:
        """At every share of a peak that has a plan, and at the smallest budget."""
        kind = f"lowtide, {self.compiler} kernels"
        self.at_budget(f"{kind}, all kept", self.keep_all_B)
        smallest_B: int | None = None
        for share in SHARES:
            budget_B = self.at.resident_B + int(share * peak_B)
            if share and (smallest_B := self.at_budget(f"{kind}, {share:.0%}", budget_B)) is None:
                continue
            if not share:
                smallest_B = self.at_budget(f"{kind}, smallest", self.at.resident_B + 1)
            if smallest_B is not None:
                self.at_budget(f"{kind}, smallest", smallest_B)
            break

    def variants(self, most_B: int) -> dict[str, Callable[[], Callable[[], object]]]:
        """For the stopwatch: every plan in one arena that is large enough for each."""
        self.model.lowtide.set_budget(max(most_B, self.keep_all_B))
        self.step()
        self.model.zero_grad(set_to_none=True)

        def variant(plan: Plan) -> Callable[[], Callable[[], object]]:
            def prepare() -> Callable[[], object]:
                self.model.zero_grad(set_to_none=True)
                self.model.lowtide.use(plan)
                return self.step

            return prepare

        return {name: variant(plan) for name, plan in self.plans.items()}


def _variant(rival: Rival, batch: dict[str, Any]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        rival.module.zero_grad(set_to_none=True)
        return lambda: rival.step(batch)

    return prepare


def compare(name: str, rounds: int) -> list[Row]:
    """Rows of one network, in a process of its own."""
    torch.set_num_threads(1)
    keep_warm(1 << 30)
    fresh_profiles()
    shim.load()  # so that its events show everybody's bytes
    at = Comparison(SUBJECTS[name])
    whole = at.compiled("torch.compile")
    others = [at.eager, whole]
    others += [at.compiled(f"torch.compile, activation budget {b:g}", budget=b) for b in BUDGETS]
    others.append(at.compiled("torch.compile, checkpoint per block", checkpointed=True))
    peaks_B = {r.name: at.peak_B(r) for r in others}
    right = {r.name: at.outcome(r.module, lambda r=r: r.step(at.batch)) for r in others}  # type: ignore[misc]
    kinds = [Planned(at, "eager", right["eager"]), Planned(at, "inductor", right[whole.name])]
    for kind in kinds:
        kind.all_budgets(peaks_B[whole.name])
    variants: dict[str, Callable[[], object]] = {r.name: _variant(r, at.batch) for r in others}
    variants["torch.compile again"] = _variant(whole, at.batch)
    for kind in kinds:
        variants |= kind.variants(at.resident_B + peaks_B[whole.name])
    at.say(f"timing {len(variants)} variants, {rounds} rounds")
    found = interleave(variants, rounds)
    rows = [_row(at, rival, peaks_B, right, whole, found) for rival in others]
    for kind in kinds:
        rows += [
            {"network": name, "variant": variant, **row, "time": f"{ratio(found[variant], found[whole.name]):.3f}"}
            for variant, row in kind.rows.items()
        ]
    return rows


def _row(
    at: Comparison,
    rival: Rival,
    peaks_B: dict[str, int],
    right: dict[str, Outcome],
    whole: Rival,
    found: dict[str, Times],
) -> Row:
    reference = right[whole.name] if rival.reassociates else right["eager"]
    aside = ""
    if rival is whole:
        aside = f" (A/A {spread(found['torch.compile again'], found[whole.name])})"
    return {
        "network": at.subject.name, "variant": rival.name + aside, "peak": mb(peaks_B[rival.name]),
        "time": f"{ratio(found[rival.name], found[whole.name]):.3f}", "right": right[rival.name].difference(reference),
        "overhead": "-", "first": f"{at.firsts[rival.name]:.0f}" if rival.name in at.firsts else "-",
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Runs and writes the table; 1 if lowtide's bits differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(USUAL), choices=NETWORKS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--try", dest="trial", action="store_true", help="write compiled_quick and merge nothing")
    options = parser.parse_args(arguments)
    found: dict[str, list[Row]] = {}
    for name in options.only:
        found[name] = answer_of(compare, name, options.rounds, quiet=False)
        if len(found[name]) < len(BUDGETS) + 3 + 4:
            raise MissingRow(f"{name}: {len(found[name])} rows")
    if not options.trial:
        earlier = read_numbers(RESULTS)
        found = (earlier if isinstance(earlier, dict) else {}) | found
    rows = [[row[key] for key in COLUMNS] for name in NETWORKS for row in found.get(name, [])]
    tables = [table("Compiled steps", list(COLUMNS.values()), rows, len(rows), NOTE)]
    path = write(f"{RESULTS}_quick" if options.trial else RESULTS, "Compiled training steps", tables, found)
    sys.stdout.write(path.read_text())
    ours = [row for rows in found.values() for row in rows if row["variant"].startswith("lowtide")]
    wrong = [row for row in ours if row["right"] != "equal"]
    sys.stderr.writelines(f"BROKEN: {row['network']}, {row['variant']}: {row['right']}\n" for row in wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
