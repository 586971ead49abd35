"""The handle of a fitted model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

from lowtide.arguments import shown
from lowtide.compiled.backend import CompileTimes
from lowtide.errors import ArgumentError
from lowtide.results.plan import Plan
from lowtide.session.member import Member
from lowtide.session.session import Session
from lowtide.units import Budget, parse_budget

_KEPT: weakref.WeakSet[Fitted] = weakref.WeakSet()


@dataclass(eq=False)
class Fitted:
    """The handle of a fitted model, at `model.lowtide`.

    A copy of the model (`copy.deepcopy`, pickling) is a plain one: its handle is None.

    Arguments:
        session: plans its steps.
        member: its parameters and optimizer, under the budget.
        compiled: what `model.compile()` had put in the place of its call; None where nothing had.
    """

    session: Session
    member: Member
    compiled: Callable[..., object] | None = None

    @property
    def plan(self) -> Plan | None:
        """The latest training plan; None before the first step."""
        record = self.session.active_plans.latest
        return None if record is None else Plan(record)

    @property
    def plans(self) -> list[Plan]:
        """Every active plan, one per shape: of the 64 that were used last."""
        return [Plan(r) for r in self.session.active_plans.plans.values()]

    @property
    def compile_times(self) -> CompileTimes:
        """What Inductor took for the graphs of this model, and what reading its kernels took; zero for others."""
        return self.session.compile_times

    @property
    def calls(self) -> int:
        """The number of graph forwards that ran in lowtide's code."""
        return self.session.calls

    def set_budget(self, budget: int | str | Budget) -> None:
        """Changes the budget; the next call of each shape is planned anew, nothing is compiled again.

        Backwards that are outstanding still use the plan of their forward. Models that share the budget get the new
        one as well.
        """
        parsed = parse_budget(budget)
        for handle in self.sharing():
            handle.session.replan(replace(handle.session.options, budget=parsed))

    def use(self, plan: Plan) -> None:
        """Activates a plan of the same program and shapes from the next step on.

        Raises:
            ArgumentError: if it is no `Plan`.
            PlanMismatch: if no step of its program has been run yet.
        """
        if not isinstance(plan, Plan):
            raise ArgumentError(f"plan={shown(plan)} is no lowtide.Plan: pass one, as in use(lowtide.Plan.load(path))")
        self.session.active_plans.use(plan.record)

    def sharing(self) -> list[Fitted]:
        """The handles of the models that train under this budget, this one among them."""
        return [h for h in _KEPT if h.session.budget_scope is self.session.budget_scope]

    def admit(self, member: Member) -> None:
        """Lets one more model train under this budget; plans that did not know of its parameters are sought anew."""
        self.session.budget_scope.members.append(member)
        for handle in self.sharing():
            handle.session.forget()

    def leave(self) -> None:
        """Ends this model's part in the budget; those that share it are planned anew, without its parameters."""
        self.session.budget_scope.leave(self.member)
        for handle in self.sharing():
            if handle is not self:
                handle.session.forget()
        _KEPT.discard(self)

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
