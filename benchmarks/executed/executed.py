"""Plans of the portfolio and of classical methods, executed in the arena: predicted and measured overhead and peak.

`python -m benchmarks.executed.executed [--only NAME ...] [--alphas 0.5 0.25]` writes `results/executed.md` and `.json`;
networks that a run leaves out keep the rows of an earlier one. It fails if a row is missing, or if bits differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import lowtide
from benchmarks.executed import rivals
from benchmarks.executed.executed_networks import NETWORKS
from benchmarks.executed.hard_budget_prediction import UNLIMITED_B, mb, prediction_error
from benchmarks.executed.rivals import Outcome
from benchmarks.networks import Subject, loss_in
from benchmarks.results_file import MissingRow, fresh_profiles, read_numbers, table, write
from benchmarks.runner import answer_of
from benchmarks.stopwatch import interleave, ratio, spread
from lowtide.device.arena import Arena
from lowtide.device.heap import keep_warm
from lowtide.errors import PlanError
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.classic.chen import ChenGreedy, ChenSqrt
from lowtide.planners.classic.rotor import Rotor
from lowtide.planners.classic.superneurons import CostAware
from lowtide.planners.portfolio import Portfolio
from lowtide.results.plan import Plan
from lowtide.units import Budget

RESULTS = "executed"
COLUMNS = {
    "network": "network", "alpha": "alpha", "budget": "budget, MB", "share": "of keep-all", "planner": "planner",
    "overhead": "predicted overhead", "measured": "measured overhead", "spread": "spread over rounds",
    "predicted": "predicted reserved, MB", "observed": "observed reserved, MB", "error": "error", "departures": "departures and spills",
    "bits": "result",
}  # fmt: skip
NOTE = (
    "Every plan runs in lowtide's own arena, at planned addresses, in generated code; only the planner differs. Overhead: over the "
    "plan that keeps everything; predicted from operators measured before the first step, measured as the median of interleaved "
    "forward-and-backward steps, both warm and in one arena. Spread: least and most over rounds; of the row keep-all, the same plan "
    "against itself. Reserved: parameters, batch and reserve included, holes too; its error is over what a plan can "
    "change. Result: one step from the same state and seed, `torch.equal` with eager in loss, gradients, buffers and generator. "
    "Alpha: of the way from the proved floor to keep-all; beside the budgets asked for, the least for which each of the two classical "
    "methods that need the fewest bytes has a plan."
)
Row = dict[str, Any]


BASELINES: tuple[AbstractPlanner, ...] = (Rotor(), ChenGreedy(), ChenSqrt(), CostAware())
COMPARED = 2  # of the baselines, those with plans in the fewest bytes
ALIKE = 0.98  # budgets closer than that are one


class Execution:
    """One network, fitted once; every plan in turn runs in its arena."""

    def __init__(self, subject: Subject) -> None:
        self.name, self.batch = subject.name, subject.batch()
        self.begun_s = time.perf_counter()
        plain = rivals.eager(subject)
        self.eager = plain.module
        self.start = {k: v.clone() for k, v in self.eager.state_dict().items()}
        self.right = Outcome.of(self.eager, lambda: plain.step(self.batch), self.start)
        self.model = lowtide.fit(subject.build(), budget=UNLIMITED_B)
        self.keep_all, _ = self.executed(
            Portfolio(), lowtide.plan(self.model, kwargs=self.batch, budget=UNLIMITED_B).reserved_B
        )
        self.plans: dict[tuple[int, str], Plan] = {}

    def say(self, text: str) -> None:
        """Progress, with the seconds since this network began."""
        sys.stderr.write(f"  {self.name} {time.perf_counter() - self.begun_s:6.1f} s: {text}\n")
        sys.stderr.flush()

    def step(self) -> torch.Tensor:
        """Forward and backward of the fitted model."""
        loss = loss_in(self.model(**self.batch))
        loss.backward()
        return loss.detach()

    def executed(self, planner: AbstractPlanner, budget_B: int) -> tuple[Plan, Row]:
        """Plans with a planner, trains one step inside the budget, and says what was seen.

        Raises:
            InfeasibleBudget: if the planner has no plan for it.
            PlanError: if it refuses the graph.
        """
        session = self.model.lowtide.session
        session.replan(dataclasses.replace(session.options, budget=Budget(size_B=budget_B), planner=planner))
        outcome = Outcome.of(self.model, self.step, self.start)
        plan, seen = self.model.lowtide.plan, lowtide.memory_stats(self.model)
        return plan, {
            "predicted": mb(plan.reserved_B), "observed": mb(seen.reserved_B),
            "error": f"{prediction_error(plan.record, seen.reserved_B):+.2%}", "bits": outcome.difference(self.right),
            "departures": seen.misplaced_allocations + seen.spills,
        }  # fmt: skip

    def lowest(self) -> list[tuple[int, AbstractPlanner]]:
        """The baselines that get by with the fewest bytes, with those bytes."""
        found = [(self.least_B(planner), planner) for planner in BASELINES]
        return sorted(((least_B, p) for least_B, p in found if least_B is not None), key=lambda pair: pair[0])[
            :COMPARED
        ]

    def least_B(self, planner: AbstractPlanner) -> int | None:
        """The fewest bytes for which a baseline names a plan; None if it names none, or refuses the graph.

        With one implementation per operator its own floor is higher than the least for all: below that it names nothing.
        """
        budget_B = self.keep_all.floor_B
        while True:
            try:
                return self.executed(planner, budget_B)[0].reserved_B
            except lowtide.InfeasibleBudget as error:
                if error.smallest_B is not None or error.floor_B <= budget_B:
                    return error.smallest_B
                budget_B = error.floor_B
            except PlanError as error:
                self.say(f"{planner.name} refuses: {error}")
                return None

    def budget_B(self, alpha: float) -> int:
        """Bytes for a share of the way from the proved floor to keeping everything."""
        floor_B, most_B = self.keep_all.floor_B, self.keep_all.reserved_B
        return floor_B + int(alpha * (most_B - floor_B))

    def attempt(self, budget_B: int, planner: AbstractPlanner) -> Row:
        """The row of a planner at a budget, its measured time still missing."""
        floor_B, most_B = self.keep_all.floor_B, self.keep_all.reserved_B
        head: Row = {
            "network": self.name, "alpha": f"{(budget_B - floor_B) / (most_B - floor_B):.2f}", "budget": mb(budget_B),
            "budget_B": budget_B, "share": f"{budget_B / most_B:.0%}", "planner": planner.name,
        }  # fmt: skip
        try:
            plan, seen = self.executed(planner, budget_B)
        except lowtide.InfeasibleBudget as error:
            least = "" if error.smallest_B is None else f" below {mb(error.smallest_B)}"
            row = head | {"overhead": f"no plan{least}", "bits": "-"}
        else:
            self.plans[budget_B, planner.name] = plan
            row = head | {"overhead": f"{plan.overhead:.2%}"} | seen
        self.say(" ".join(str(row[k]) for k in ("alpha", "planner", "overhead", "bits")))
        return row

    def variants(self, rounds: int) -> dict[Any, Any]:
        """Times eager and every plan, all in arenas that have room for everything."""
        arena = Arena(4 * self.keep_all.reserved_B, small_zone_B=2**20, persistent_B=0)
        session = self.model.lowtide.session
        capacity = Budget(size_B=self.keep_all.reserved_B)
        session.replan(dataclasses.replace(session.options, budget=capacity, planner=Portfolio()))
        self.step()

        def eager() -> Callable[[], object]:
            def run() -> None:
                with arena.engaged():
                    loss_in(self.eager(**self.batch)).backward()
                    self.eager.zero_grad(set_to_none=True)

            return run

        def of(plan: Plan) -> Callable[[], Callable[[], object]]:
            def prepare() -> Callable[[], object]:
                self.model.zero_grad(set_to_none=True)
                self.model.lowtide.use(plan)
                return self.step

            return prepare

        turns: dict[Any, Callable[[], object]] = {
            "eager": eager,
            "keep-all": of(self.keep_all),
            "again": of(self.keep_all),
        }
        turns |= {key: of(plan) for key, plan in self.plans.items()}
        self.say(f"timing {len(turns)} variants, {rounds} rounds")
        return dict(interleave(turns, rounds))


def execute(name: str, rounds: int, alphas: list[float]) -> list[Row]:
    """Rows of one network, in a process of its own: keep-all first, then per budget ours and the baselines.

    The budgets are those asked for, and the least for which each of the baselines has a plan.
    """
    keep_warm(1 << 30)
    fresh_profiles()
    at = Execution(NETWORKS[name])
    lowest = at.lowest()
    planners = (Portfolio(), *(planner for _, planner in lowest))
    budgets_B: list[int] = []
    for budget_B in sorted([*map(at.budget_B, alphas), *(least_B for least_B, _ in lowest)], reverse=True):
        if not budgets_B or budget_B < ALIKE * budgets_B[-1]:
            budgets_B.append(budget_B)
    rows = [at.attempt(budget_B, planner) for budget_B in budgets_B for planner in planners]
    found = at.variants(rounds)
    plain = found["keep-all"]
    for row in rows:
        mine = found.get((row["budget_B"], row["planner"]))
        row["measured"] = "-" if mine is None else f"{ratio(mine, plain) - 1:.2%}"
        row["spread"] = "-" if mine is None else spread(mine, plain)
    _, seen = at.executed(Portfolio(), at.keep_all.reserved_B)
    first = {
        "network": at.name, "alpha": "1.00", "budget": mb(at.keep_all.reserved_B), "share": "100%", "planner": "keep-all",
        "overhead": "0.00%", "measured": f"A/A {ratio(found['again'], plain) - 1:+.2%}; over eager {ratio(plain, found['eager']) - 1:+.2%}",
        "spread": spread(found["again"], plain),
    }  # fmt: skip
    return [first | seen, *rows]


def run(name: str, rounds: int, alphas: list[float]) -> list[Row]:
    """One network in a process of its own; its progress goes to stderr.

    Raises:
        RuntimeError: if it failed.
        MissingRow: if it left a baseline out.
    """
    rows: list[Row] = answer_of(execute, name, rounds, alphas, quiet=False)
    if len({row["planner"] for row in rows}) < 1 + 3:  # keep-all, ours and two baselines
        raise MissingRow(f"{name}: {rows}")
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Runs and writes the table; 1 if lowtide's bits differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--alphas", nargs="*", type=float, default=[0.5, 0.25])
    parser.add_argument("--try", dest="trial", action="store_true", help="write executed_quick and merge nothing")
    options = parser.parse_args(arguments)
    file = f"{RESULTS}_quick" if options.trial else RESULTS
    found: dict[str, list[Row]] = {} if options.trial else dict(read_numbers(file))
    begin = time.perf_counter()
    for name in options.only:
        found[name] = run(name, options.rounds, options.alphas)
        sys.stderr.write(f"{name}: {time.perf_counter() - begin:.0f} s in all\n")
        rows = [[row.get(key, "-") for key in COLUMNS] for n in NETWORKS for row in found.get(n, [])]
        expected = sum(len(found[n]) for n in NETWORKS if n in found)
        tables = [table("Predicted and executed", list(COLUMNS.values()), rows, expected, NOTE)]
        path = write(file, "Plans executed in the arena", tables, found)
    sys.stdout.write(path.read_text())
    wrong = [row for rows in found.values() for row in rows if row["bits"] not in ("equal", "-")]
    sys.stderr.writelines(f"BROKEN: {row['network']}, {row['planner']}: {row['bits']}\n" for row in wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
