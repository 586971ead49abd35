"""Peak, step time and correctness of what people use today, and of lowtide in the same bytes, in one run per network.

Plain eager, `torch.utils.checkpoint` per block, selective checkpointing, saved tensors on the host, and stock
`torch.compile` with `activation_memory_budget`; dropout is on, as users have it.

`python -m benchmarks.executed.side_by_side [--only NAME ...]` writes `results/side_by_side.md` and `.json`; networks that a run
leaves out keep the rows of an earlier one. It fails if a row is missing, or if lowtide's bits differ from eager's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import lowtide
from benchmarks.executed import rivals
from benchmarks.executed.hard_budget_prediction import mb, resident_B
from benchmarks.executed.rivals import Outcome, Rival
from benchmarks.executed.side_by_side_networks import BUDGETS, NETWORKS, USUAL
from benchmarks.networks import Subject, loss_in
from benchmarks.results_file import MissingRow, fresh_profiles, read_numbers, table, write
from benchmarks.runner import answer_of
from benchmarks.stopwatch import interleave, ratio, spread
from lowtide.device import shim
from lowtide.device.heap import keep_warm
from lowtide.device.observer import observe
from lowtide.results.plan import Plan

RESULTS = "side_by_side"
COLUMNS = {
    "network": "network", "variant": "variant", "peak": "its peak, MB", "host": "on the host, MB", "time": "its time / eager",
    "right": "its result", "reserved": "lowtide reserved, MB", "bits": "lowtide's result", "departures": "departures and spills",
    "ours": "lowtide time / eager", "over": "lowtide / variant",
}  # fmt: skip
NOTE = (
    "Bytes beside parameters, buffers and batch. Its peak: live bytes of a warm forward and backward, from allocator events. "
    "Lowtide reserved: in an arena of the variant's peak, holes and what is set aside included. Times: medians of interleaved "
    "rounds, both sides warm, eager and its variants on malloc's heap kept warm, lowtide's plans in one arena. Result: one step "
    "from the same state and seed, `torch.equal` in loss, gradients, buffers and generator, or the norm of the difference over the "
    "norm. Where there is dropout, stock torch.compile draws other random numbers than eager and is compared with its own "
    "budget of 1 instead: below 1 its backward draws new masks, and the gradients are not those of the forward "
    "(pytorch#190758). Saved tensors on the host: the hooks of `save_on_cpu` copy nothing between a CPU and itself, so they copy to "
    "memory outside torch's allocator here, at the speed of memory; a GPU's bus is slower. Stock torch.compile "
    "fuses kernels, lowtide runs torch's own unchanged: where the last column is above 1, lowtide loses."
)
Row = dict[str, Any]
_WITHOUT_STOCK = 5  # rows of a network beside those of stock torch.compile


class Comparison:
    """One network with all that was said of it."""

    def __init__(self, subject: Subject) -> None:
        self.subject, self.batch = subject, subject.batch()
        self.begun_s = time.perf_counter()
        self.eager = rivals.eager(subject)
        self.start = {k: v.clone() for k, v in self.eager.module.state_dict().items()}
        self.resident_B = resident_B(self.eager.module, self.batch)
        self.right = self.outcome(self.eager)
        torch.manual_seed(7)
        self.random = not torch.equal(self.right.generator, torch.get_rng_state())

    def say(self, text: str) -> None:
        """Progress, with the seconds since this network began."""
        sys.stderr.write(f"  {self.subject.name} {time.perf_counter() - self.begun_s:6.1f} s: {text}\n")
        sys.stderr.flush()

    def outcome(self, rival: Rival) -> Outcome:
        """One step of a rival from the start."""
        return Outcome.of(rival.module, lambda: rival.step(self.batch), self.start)

    def others(self, budgets: list[float]) -> list[Rival]:
        """Everything but lowtide, warm."""
        found = [
            self.eager,
            rivals.checkpointed(self.subject, selective=False),
            rivals.checkpointed(self.subject, selective=True),
            rivals.offloaded(self.subject),
        ]
        for budget in budgets:
            self.say(f"compiling stock, budget {budget}")
            found.append(rivals.stock(self.subject, budget))
        return found

    def peak_B(self, rival: Rival) -> int:
        """Most bytes that one warm step takes beside parameters, buffers and batch, by torch's allocator."""
        rival.step(self.batch)
        rival.module.zero_grad(set_to_none=True)
        with observe() as seen:
            rival.step(self.batch)
        rival.module.zero_grad(set_to_none=True)
        return seen.peak_B

    def verdicts(self, others: list[Rival]) -> dict[str, str]:
        """Whether each rival's step stayed right.

        Fused kernels draw other random numbers than torch's own; where there is dropout, stock budgets are compared with
        the same compiler's budget of 1, which keeps every mask that its forward drew.
        """
        outcomes = {r.name: self.outcome(r) for r in others}
        whole = next((r.name for r in others if r.reassociates), None)
        said = {}
        for rival in others:
            if rival.reassociates and self.random:
                if rival.name == whole:
                    said[rival.name] = "other random numbers: not comparable"
                else:
                    said[rival.name] = f"against budget 1: {outcomes[rival.name].difference(outcomes[str(whole)])}"
            else:
                said[rival.name] = outcomes[rival.name].difference(self.right)
        return said


class Ours:
    """lowtide, enclosed in turn in what each rival needs."""

    def __init__(self, comparison: Comparison) -> None:
        self.at = comparison
        self.model = lowtide.fit(comparison.subject.build(), budget="100% of plain")
        self.plans: dict[str, Plan] = {}
        self.rows: dict[str, dict[str, Any]] = {}

    def step(self) -> torch.Tensor:
        """Forward and backward."""
        loss = loss_in(self.model(**self.at.batch))
        loss.backward()
        return loss.detach()

    def enclosed(self, name: str, peak_B: int) -> None:
        """Trains a step in an arena of a rival's bytes."""
        self.model.lowtide.set_budget(self.at.resident_B + peak_B)
        try:
            outcome = Outcome.of(self.model, self.step, self.at.start)
        except lowtide.InfeasibleBudget as error:
            least = "unknown" if error.smallest_B is None else mb(error.smallest_B - self.at.resident_B)
            self.rows[name] = {"reserved": f"no plan below {least}", "bits": "-", "departures": "-"}
            self.at.say(f"lowtide at {name}: no plan below {least} MB")
            return
        seen = lowtide.memory_stats(self.model)
        self.plans[name] = self.model.lowtide.plan
        self.rows[name] = {
            "reserved": mb(seen.reserved_B - self.at.resident_B), "bits": outcome.difference(self.at.right),
            "departures": seen.misplaced_allocations + seen.spills,
        }  # fmt: skip
        self.at.say(f"lowtide at {name}: {self.rows[name]['bits']}")

    def variants(self, most_B: int) -> dict[str, Callable[[], Callable[[], object]]]:
        """For the stopwatch: every plan in one arena that has room for the largest."""
        self.model.lowtide.set_budget(self.at.resident_B + most_B)
        self.step()
        self.model.zero_grad(set_to_none=True)

        def variant(plan: Plan) -> Callable[[], Callable[[], object]]:
            def prepare() -> Callable[[], object]:
                self.model.zero_grad(set_to_none=True)
                self.model.lowtide.use(plan)
                return self.step

            return prepare

        return {f"lowtide: {name}": variant(plan) for name, plan in self.plans.items()}


def _variant(rival: Rival, batch: dict[str, Any]) -> Callable[[], Callable[[], object]]:
    def prepare() -> Callable[[], object]:
        rival.module.zero_grad(set_to_none=True)
        return lambda: rival.step(batch)

    return prepare


def compare(name: str, rounds: int, budgets: list[float]) -> list[Row]:
    """Rows of one network, in a process of its own: every rival, and lowtide in an arena of what the rival was seen to need."""
    keep_warm(1 << 30)
    fresh_profiles()
    shim.load()  # so that its events show everybody's bytes
    subject = NETWORKS[name]
    at = Comparison(subject)
    others = at.others(budgets)
    at.say("observing peaks")
    peaks_B = {r.name: at.peak_B(r) for r in others}
    said = at.verdicts(others)
    ours = Ours(at)
    for variant, peak_B in peaks_B.items():
        ours.enclosed(variant, peak_B)
    variants: dict[str, Callable[[], object]] = {r.name: _variant(r, at.batch) for r in others}
    variants["eager again"] = _variant(at.eager, at.batch)
    variants |= ours.variants(max(peaks_B.values()))
    at.say(f"timing {len(variants)} variants, {rounds} rounds")
    found = interleave(variants, rounds)
    eager = found["eager"]
    rows = []
    for rival in others:
        variant, mine = rival.name, found.get(f"lowtide: {rival.name}")
        rows.append({
            "network": subject.name, "variant": variant, "peak": mb(peaks_B[variant]),
            "host": mb(rival.host.saved_B) if rival.host is not None else "-", "time": f"{ratio(found[variant], eager):.3f}",
            "right": said[variant], **ours.rows[variant],
            "ours": "-" if mine is None else f"{ratio(mine, eager):.3f}",
            "over": "-" if mine is None else f"{ratio(mine, found[variant]):.3f}",
        })  # fmt: skip
    again = found["eager again"]
    rows.append({
        "network": subject.name, "variant": f"eager again (A/A {spread(again, eager)})", "peak": mb(peaks_B["eager"]), "host": "-",
        "time": f"{ratio(again, eager):.3f}", "right": at.outcome(at.eager).difference(at.right),
        "reserved": "-", "bits": "-", "departures": "-", "ours": "-", "over": "-",
    })  # fmt: skip
    at.say(f"done; an eager step takes {eager.median_s:.2f} s")
    return rows


def run(name: str, rounds: int, budgets: tuple[float, ...]) -> list[Row]:
    """One network in a process of its own; its progress goes to stderr.

    Raises:
        RuntimeError: if it failed.
        MissingRow: if it left a variant out.
    """
    rows: list[Row] = answer_of(compare, name, rounds, budgets, quiet=False)
    if len(rows) != _WITHOUT_STOCK + len(budgets):
        raise MissingRow(f"{name}: {len(rows)} rows of {_WITHOUT_STOCK + len(budgets)}")
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Runs and writes the table; 1 if lowtide's bits differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(USUAL), choices=list(NETWORKS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budgets", nargs="*", type=float, help="of stock torch.compile, instead of the usual ones")
    parser.add_argument("--try", dest="trial", action="store_true", help="write side_by_side_quick and merge nothing")
    options = parser.parse_args(arguments)
    found: dict[str, list[Row]] = {}
    begin = time.perf_counter()
    for name in options.only:
        budgets = BUDGETS[name] if options.budgets is None else tuple(options.budgets)
        found[name] = run(name, options.rounds, budgets)
        sys.stderr.write(f"{name}: {time.perf_counter() - begin:.0f} s in all\n")
        sys.stderr.flush()
    if not options.trial:
        earlier = read_numbers(RESULTS)
        found = (earlier if isinstance(earlier, dict) else {}) | found
    rows = [[row[key] for key in COLUMNS] for name in NETWORKS for row in found.get(name, [])]
    expected = sum(len(found[name]) for name in NETWORKS if name in found)
    tables = [table("Peak, time and result", list(COLUMNS.values()), rows, expected, NOTE)]
    path = write(f"{RESULTS}_quick" if options.trial else RESULTS, "Side by side", tables, found)
    sys.stdout.write(path.read_text())
    wrong = [row for rows in found.values() for row in rows if row["bits"] not in ("equal", "-")]
    sys.stderr.writelines(f"BROKEN: {row['network']}, {row['variant']}: {row['bits']}\n" for row in wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
