"""`lowtide.Frontier`: what a frontier is to the person who holds it. Needs no torch.

Units: `_B` bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from lowtide.arguments import check_file
from lowtide.errors import BudgetError, InfeasibleBudget, PlanError
from lowtide.ir.frontier import Baseline, FrontierRecord, Point
from lowtide.ir.plan import PlanRecord, Status
from lowtide.ir.text import dumps, load_frontier, save_frontier
from lowtide.report.frontier import render_frontier
from lowtide.report.frontier_page import write_frontier
from lowtide.report.frontier_picture import write_frontier_picture
from lowtide.report.notebook import frontier_frame
from lowtide.results.plan import Plan
from lowtide.units import Budget, format_B, format_percent, parse_budget

_EQUAL = 1e-6  # relative; bounds and times are sums in another order


@dataclass(frozen=True)
class Frontier:
    """The least time at every budget, made before the first step.

    Arguments:
        record: the frontier as data.
        plans: those behind its points; none where it was read from a file.
    """

    record: FrontierRecord
    plans: tuple[PlanRecord, ...] = field(default=(), repr=False)

    @property
    def points(self) -> tuple[Point, ...]:
        """One per budget, largest first; those without a plan say why."""
        return self.record.points

    @property
    def baselines(self) -> tuple[Baseline, ...]:
        """Plans of other methods, to compare with."""
        return self.record.baselines

    @property
    def floor_B(self) -> int:
        """No plan needs less; this is proved."""
        return self.record.floor_B

    @property
    def smallest_B(self) -> int | None:
        """The smallest budget with a plan; None where there is none."""
        return self.record.smallest_B

    @property
    def keep_all_B(self) -> int:
        """The budget that keeping everything needs."""
        return self.record.keep_all_B

    def at(self, budget: int | str | Budget) -> Point | None:
        """The fastest known plan's point within a budget; None where there is none.

        Arguments:
            budget: bytes, "6GiB" or "60% of plain".

        Raises:
            BudgetError: if the budget is malformed, or a share of a device.
        """
        return self.record.at(self._size_B(budget))

    def plan(self, budget: int | str | Budget) -> Plan:
        """The fastest known plan within a budget, for `lowtide.fit(model, plan=...)`.

        Arguments:
            budget: bytes, "6GiB" or "60% of plain".

        Raises:
            BudgetError: if the budget is malformed, or a share of a device.
            InfeasibleBudget: if no plan is known for it.
            PlanError: if this frontier was read from a file, which holds no plans.
        """
        budget_B = self._size_B(budget)
        if not self.plans:
            raise PlanError(
                "a frontier from a file has points and no plans: lowtide.plan with the same model and this budget "
                "makes one."
            )
        fitting = [p for p in self.plans if p.reserved_B <= budget_B]
        if not fitting:
            raise InfeasibleBudget(
                f"this frontier knows no plan for {format_B(budget_B)}. Proved floor: {format_B(self.floor_B)}. "
                f"Smallest budget with a plan: {self._smallest()}.",
                budget_B=budget_B,
                floor_B=self.floor_B,
                smallest_B=self.smallest_B,
                operators=self.record.floor_operators,
            )
        best = min(fitting, key=lambda p: (p.time_s, p.reserved_B))
        proved = [p.bound_s for p in self.points if p.budget_B >= budget_B] or [self.points[0].bound_s]
        bound_s = proved[-1]  # what was proved for fewer bytes need not hold for these
        status = best.outcome.status
        if status is Status.OPTIMAL and best.time_s > bound_s * (1.0 + _EQUAL):
            status = Status.FEASIBLE
        return Plan(replace(best, budget_B=budget_B, outcome=replace(best.outcome, bound_s=bound_s, status=status)))

    def explain(self) -> str:
        """The numbers, the budgets and the other methods, as text."""
        return render_frontier(self.record)

    def save(self, path: str | Path) -> None:
        """Writes the frontier, without its plans, as versioned JSON; the file is replaced as a whole."""
        check_file(path)
        save_frontier(self.record, path)

    @staticmethod
    def load(path: str | Path) -> Frontier:
        """Reads a saved frontier.

        Raises:
            PlanFileError: if the file is damaged, foreign, or of another version.
        """
        check_file(path)
        return Frontier(load_frontier(path))

    def to_json(self) -> str:
        """The text that `save` writes."""
        return dumps(self.record)

    def to_html(self, path: str | Path) -> None:
        """Writes a report in one file that opens without a network."""
        check_file(path)
        write_frontier(self.record, path)

    def to_svg(self, path: str | Path) -> None:
        """Draws the frontier, its bound and the other methods, as a picture that browsers and Markdown show."""
        check_file(path)
        write_frontier_picture(self.record, path)

    def _size_B(self, budget: int | str | Budget) -> int:
        return parse_budget(budget).in_B(lambda: self.keep_all_B, _no_device)

    def _smallest(self) -> str:
        return "none" if self.smallest_B is None else f"{format_B(self.smallest_B)} ({self.smallest_B:,} B)"

    def _repr_html_(self) -> str:
        """The frontier as notebooks show it: what it says, and its picture."""
        return frontier_frame(self.record)

    def __repr__(self) -> str:
        there = self.record.planned[-1:]
        overhead = f" for {format_percent(there[0].overhead or 0.0)} more time" if there else ""
        stopped = f", stopped by {self.record.stopped}" if self.record.stopped else ""
        sizes = f"{format_B(self.keep_all_B)} when all is kept, down to {self._smallest()}{overhead}"
        return f"Frontier({sizes}; proved floor {format_B(self.floor_B)}, {len(self.points)} budgets{stopped})"


def _no_device() -> int:
    raise BudgetError('a frontier knows no device to take a share of: write bytes, "6GiB", or "60% of plain"')
