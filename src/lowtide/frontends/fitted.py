"""The handle of a fitted model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

from lowtide.frontends.plan import Plan
from lowtide.frontends.session import Session
from lowtide.units import Budget, parse_budget

_KEPT: weakref.WeakSet[Fitted] = weakref.WeakSet()


@dataclass(eq=False)
class Fitted:
    """The handle of a fitted model, at `model.lowtide`.

    A copy of the model (`copy.deepcopy`, pickling) is a plain one: its handle is None.
    """

    session: Session

    @property
    def plan(self) -> Plan | None:
        """The latest training plan; None before the first step."""
        record = self.session.record
        return None if record is None else Plan(record)

    @property
    def plans(self) -> list[Plan]:
        """Every plan in force, one per shape and graph."""
        return [Plan(r) for r in self.session.plans.values()]

    @property
    def calls(self) -> int:
        """How many graph forwards ran in lowtide's code."""
        return self.session.calls

    def set_budget(self, budget: int | str | Budget) -> None:
        """Changes the budget; the next call of each shape is planned anew, nothing is compiled again.

        Backwards that are outstanding still use the plan of their forward.
        """
        self.session.replan(replace(self.session.options, budget=parse_budget(budget)))

    def use(self, plan: Plan) -> None:
        """Puts a plan of the same program and shapes in force from the next step on.

        Raises:
            PlanMismatch: if no step of its program has been run yet.
        """
        self.session.use(plan.record)

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return (_no_handle, ())


def _no_handle() -> None:
    return None


def keep(handle: Fitted) -> Fitted:
    """Counts a handle among the fitted models for as long as it lives, and returns it."""
    _KEPT.add(handle)
    return handle


def fitted_models() -> list[Fitted]:
    """Handles of the fitted models that are still alive, in no order."""
    gc.collect()  # a model and its compiled call refer to each other
    return list(_KEPT)
