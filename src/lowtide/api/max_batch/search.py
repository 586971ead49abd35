"""Asking, size by size, whether a model's step has a plan inside a budget; and what was answered.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from lowtide.api.max_batch.sized_steps import Family, RefusesOneError
from lowtide.api.size_search import largest
from lowtide.errors import InfeasibleBudget
from lowtide.ir.plan import PlanRecord
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.first_plan import FirstPlan
from lowtide.planners.keep_all import KeepAll
from lowtide.record import PlanOptions
from lowtide.units import format_percent


class Tried(msgspec.Struct, frozen=True):
    """One size that was looked at.

    Arguments:
        size: batch size or sequence length.
        fits: whether it counts as fitting.
        needed_B: bytes that its plan would reserve; where there is none, the smallest budget for which one was found,
            or the proved floor where none was looked for.
        seconds_s: what looking took.
        how: "foreseen" from two measured sizes, "measured", "planned" as it would be run, or "run".
        note: why it does not count, where that is not its bytes.
    """

    size: int
    fits: bool
    needed_B: int
    seconds_s: float
    how: str
    note: str = ""


@dataclass(eq=False)
class FitSearch:
    """The search over the sizes of a family.

    Arguments:
        family: one model's steps.
        options: the budget in bytes, and how to plan.
        low, high: the least and the largest size; high None: no limit.
        step: distance of neighbouring sizes.
        overhead_limit: no plan counts that is slower by more than this fraction than keeping everything.
    """

    family: Family
    options: PlanOptions
    low: int
    high: int | None
    step: int
    overhead_limit: float | None = None
    tried: list[Tried] = field(default_factory=list)
    plain: int | None = None

    def run(self) -> int | None:
        """The largest size that was measured and planned inside the budget; None if not even the least was.

        Sets `plain`, the largest that fits when everything is kept.
        """
        self.plain = self._largest(self._keeps, self.high, None)
        return self._largest(self._plans, self.high, self.plain)

    def next_smaller(self, size: int) -> int | None:
        """The next smaller size to try, after one that was found and does not do; None if there is none."""
        good = self.plain if self.plain is not None and self.plain < size else None
        return None if size <= self.low else self._largest(self._plans, size - self.step, good)

    def note(self, size: int, needed_B: int, start_s: float, how: str, note: str = "", *, fits: bool) -> None:
        """Remembers an answer."""
        self.tried.append(Tried(size, fits, needed_B, time.perf_counter() - start_s, how, note))

    def too_slow(self, record: PlanRecord) -> str:
        """Why a plan does not count though it fits; empty if it does count."""
        if self.overhead_limit is None or record.overhead <= self.overhead_limit:
            return ""
        return f"overhead {format_percent(record.overhead)}, over the limit of {format_percent(self.overhead_limit)}"

    def impossible(self) -> InfeasibleBudget:
        """The error to raise where not even the least size fits."""
        size = self.low
        record = self._planned(size, True, self.options.planner)
        if size == 1 and isinstance(record, InfeasibleBudget) and not record.floor_B:
            size += self.step
            record = self._planned(size, True, self.options.planner)
        if isinstance(record, InfeasibleBudget):
            error = record
            return InfeasibleBudget(
                f"not even size {size} fits. {error}",
                budget_B=error.budget_B,
                floor_B=error.floor_B,
                smallest_B=error.smallest_B,
                operators=error.operators,
            )
        reason = self.too_slow(record) or f"what was found needs {record.reserved_B:,} B"
        return InfeasibleBudget(
            f"not even size {size} does: {reason}. Raise the budget or the limit.",
            budget_B=record.budget_B,
            floor_B=record.floor_B,
            smallest_B=record.reserved_B,
        )

    def _largest(self, answer: Callable[[int, bool], bool], high: int | None, good: int | None) -> int | None:
        """The largest size up to `high` for which an answer is yes; the question is (size, whether to measure it)."""
        return largest(
            lambda n: answer(n, False), lambda n: answer(n, True), low=self.low, high=high, step=self.step, good=good
        )

    def _keeps(self, size: int, truly: bool) -> bool:
        return isinstance(self._planned(size, truly, KeepAll()), PlanRecord)

    def _plans(self, size: int, truly: bool) -> bool:
        start_s, how = time.perf_counter(), "measured" if truly else "foreseen"
        found = self._planned(size, truly, FirstPlan())
        if isinstance(found, InfeasibleBudget):
            self.note(size, found.smallest_B or found.floor_B, start_s, how, fits=False)
            return False
        slow = self.too_slow(found)
        if slow:  # the first plan is not the fastest
            better = self._planned(size, truly, self.options.planner)
            found = better if isinstance(better, PlanRecord) else found
            slow = self.too_slow(found)
        self.note(size, found.reserved_B, start_s, how, slow, fits=not slow)
        return not slow

    def _planned(self, size: int, truly: bool, planner: AbstractPlanner) -> PlanRecord | InfeasibleBudget:
        try:
            step = self.family.measured(size) if truly else self.family.foreseen(size)
            return self.family.plan(step, replace(self.options, planner=planner))
        except InfeasibleBudget as error:
            return error
        except RefusesOneError as error:
            return InfeasibleBudget(str(error))
