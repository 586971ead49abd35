"""`lowtide.max_batch`: the largest batch, or the longest sequence, whose training step fits a budget.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from lowtide.api.max_batch.search import FitSearch, Tried
from lowtide.api.max_batch.sized_steps import Family
from lowtide.api.max_batch.trial_step import LossOf, try_step
from lowtide.api.plan import plan as plan_of
from lowtide.arguments import function, number, shown, whole, yes_or_no
from lowtide.device.fingerprint import device_memory_B
from lowtide.device.generator_guard import unchanged_generators
from lowtide.errors import ArgumentError, BudgetError, InfeasibleBudget, LowtideError
from lowtide.ir.compilers import EAGER
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import DEFAULT_WORK
from lowtide.planners.base import Watch
from lowtide.profile.machines import load_machine
from lowtide.record import PlanOptions
from lowtide.results.plan import Plan
from lowtide.session.budget_scope import BudgetScope, Scope
from lowtide.session.handle import Fitted
from lowtide.session.inputs import Inputs, read_batch
from lowtide.session.member import member_of
from lowtide.session.options import implementation_options
from lowtide.session.session import Session
from lowtide.units import Budget, format_B, format_percent, format_s, parse_budget


@dataclass(frozen=True, repr=False)
class MaxBatch:
    """The largest size that was found to fit.

    Arguments:
        size: the n of `make_batch(n)`.
        plan: of the step at that size; `lowtide.fit(model, plan=...)` takes it.
        verified: whether a step of that size was really run inside the budget.
        plain_size: the largest that fits the same budget when everything is kept, as plain PyTorch does; 0 if none.
        tried: every size that was planned, in order.
        seconds_s: what all of it took.
        note: what people should know about this answer; empty when there is nothing.
    """

    size: int
    plan: Plan
    verified: bool
    plain_size: int
    tried: tuple[Tried, ...]
    seconds_s: float
    note: str = ""

    def __repr__(self) -> str:
        sure = "verified by a step" if self.verified else "not verified"
        plain = f"plain {self.plain_size}" if self.plain_size else "plain does not fit"
        return (
            f"MaxBatch({self.size}, {plain}; {format_B(self.plan.reserved_B)} of {format_B(self.plan.budget_B)} "
            f"{self.plan.budget_kind}, overhead {format_percent(self.plan.overhead)}, {sure}; "
            f"{len({t.size for t in self.tried})} sizes in {format_s(self.seconds_s)})"
        )


def max_batch(
    make_batch: Callable[[int], Any],
    model: torch.nn.Module,
    budget: int | str | Budget,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    low: int = 1,
    high: int | None = None,
    multiple_of: int = 1,
    overhead_limit: float | None = None,
    verify: bool = True,
    loss: LossOf | None = None,
    scope: Scope = "step",
    machine: str | None = None,
    numerics: str | Numerics = Numerics.EXACT,
    without: Collection[str] = (),
    seed: int = 0,
    work: int = DEFAULT_WORK,
    compiler: str = EAGER,
    watch: Watch | None = None,
) -> MaxBatch:
    """Finds the largest batch (or sequence) whose training step has a plan inside a budget, and tries it.

    Sizes are looked at by planning: the model is captured once with extents that vary, its operators are measured at a
    few sizes and predicted at the others. The answer's own size is measured, planned as `fit` plans it, and run for one
    step with the optimizer's; if that fails, the next smaller size is taken, and `tried` says so. Then parameters,
    buffers, gradients, optimizer state and generators are as they were, also on Ctrl-C and when the model raises; hooks
    run once more, and attributes that a forward sets stay as it set them. The answer fits; that nothing larger does is
    not proved: where a larger size needs fewer bytes than a smaller one, it can remain unseen.

    Arguments:
        make_batch: gives what the model is called with at size n: a tensor, a tuple of positional arguments, a dict of
            keyword arguments, or a pair (tuple, dict) of both. Some extent grows with n.
        model: plain (not fitted), in the mode to train in.
        budget: bytes, "6GiB", or "60%" of the device.
        optimizer: its state and temporaries count, and it is stepped to verify.
        low, high, multiple_of: the least and the largest size to consider, and what sizes are multiples of. A model
            with a longest sequence needs `high`: planning computes nothing, and does not notice.
        overhead_limit: accept no plan that is slower by more than this fraction than keeping everything would be at
            the same size; 0.5 is 50 %. The largest size that fits is often a slow one.
        verify: whether to run a step. For a machine that is not here none is run.
        loss: gives the loss of what the model returns. Without one: its `loss`, or its only output of one element;
            else every output is given a gradient of ones, which takes the bytes of a loss outside the model.
        machine: predict for a machine that is not here, by name or file.
        scope, numerics, without, seed, work, watch: as for `fit`.
        compiler: "eager". With Inductor's kernels there is no capture for sizes that vary.

    Raises:
        ArgumentError: if an argument is of the wrong kind or out of range; if `compiler` is "inductor".
        BudgetError: if the budget is malformed, or a share of what plain PyTorch needs, which grows with the batch.
        InfeasibleBudget: if not even the least size fits; it names floor, smallest budget and operators.
        CaptureError, OptimizerError: if nothing could be captured; if the optimizer is none.
        LowtideError: if the model is fitted, or `make_batch` gives the same shapes at every size.
    """
    _check(make_batch, low, high, multiple_of, overhead_limit, verify, loss, watch)
    start_s = time.perf_counter()
    size = Budget(size_B=_budget_B(budget, machine))
    low, high = _bounds(low, high, multiple_of)
    if isinstance(getattr(model, "lowtide", None), Fitted):
        raise LowtideError("the model is fitted, and max_batch fits it itself: call lowtide.unfit(model) first")
    options = PlanOptions(
        budget=size,
        seed=seed,
        work=work,
        machine=machine,
        compiler=compiler,
        **implementation_options(numerics, without),
    )
    if options.compiler != EAGER:
        raise ArgumentError(_COMPILED)
    session = Session(options, BudgetScope(scope, [member_of(model, optimizer)]), watch=watch, whole_model=True)

    def make(size: int) -> Inputs:
        return read_batch(make_batch(size))

    trial = _Trial(model, make, options, optimizer, loss, scope, verify and machine is None, watch)
    with unchanged_generators():  # `make_batch` may draw from them
        family = Family(model, make, session, _two(low, high, multiple_of), times=overhead_limit is not None)
        return _confirmed(FitSearch(family, options, low, high, multiple_of, overhead_limit), trial, start_s)


_COMPILED = (
    'max_batch with compiler="inductor": sizes are looked at in one capture for all, and the kernels of Inductor '
    'are planned for fixed sizes. Find the size with compiler="eager", and ask lowtide.plan(..., compiler="inductor") '
    "whether a larger one fits as well: fused kernels need fewer bytes."
)


@dataclass(frozen=True)
class _Trial:
    """The test of a size that was found: planned as `fit` plans it, and run if it is to be verified."""

    model: torch.nn.Module
    make: Callable[[int], Inputs]
    options: PlanOptions
    optimizer: torch.optim.Optimizer | None
    loss: LossOf | None
    scope: Scope
    runs: bool
    watch: Watch | None

    def plan(self, size: int) -> tuple[Plan, bool]:
        """The plan at a size, and whether a step ran inside it.

        Raises:
            InfeasibleBudget, torch.OutOfMemoryError: if it does not stand the trial.
        """
        args, kwargs = self.make(size)
        options = self.options
        common: dict[str, Any] = {
            "optimizer": self.optimizer,
            "scope": self.scope,
            "numerics": options.numerics,
            "without": options.without,
            "seed": options.seed,
            "work": options.work,
            "watch": self.watch,
        }
        if not self.runs:
            return plan_of(self.model, args, kwargs, budget=options.budget, machine=options.machine, **common), False
        record = try_step(self.model, (args, kwargs), options.budget, loss=self.loss, **common)
        return Plan(record), record.budget_kind != "accounted"


def _confirmed(search: FitSearch, trial: _Trial, start_s: float) -> MaxBatch:
    """The largest size that stands the trial, beginning with the largest that was planned.

    Raises:
        InfeasibleBudget: if there is none.
    """
    size, failed = search.run(), list[str]()
    if size is None:
        raise search.impossible()
    while size is not None:
        began_s = time.perf_counter()
        try:
            plan, verified = trial.plan(size)
            reason, needed_B = search.too_slow(plan.record), plan.reserved_B
        except (InfeasibleBudget, torch.OutOfMemoryError) as error:
            reason, needed_B = str(error).partition("\n")[0], getattr(error, "smallest_B", None) or 0
        search.note(size, needed_B, began_s, "run" if trial.runs else "planned", reason, fits=not reason)
        if not reason:
            if trial.runs and not verified:
                failed.append("a step ran, and nothing held it inside the budget")
            took_s = time.perf_counter() - start_s
            return MaxBatch(size, plan, verified, search.plain or 0, tuple(search.tried), took_s, "; ".join(failed))
        failed.append(f"size {size} was rejected: {reason}")
        size = search.next_smaller(size)
    raise InfeasibleBudget("no size stood the trial: " + "; ".join(failed), budget_B=search.options.budget.size_B or 0)


def _check(
    make_batch: object,
    low: object,
    high: object,
    multiple_of: object,
    overhead_limit: object,
    verify: object,
    loss: object,
    watch: object,
) -> None:
    """Raises:
    ArgumentError: if one of them is of the wrong kind.
    """
    if isinstance(make_batch, torch.nn.Module) or not callable(make_batch):
        raise ArgumentError(
            f"make_batch={shown(make_batch)} makes no batch: pass a function of a size first, and the model second, "
            "as in max_batch(lambda n: (torch.randn(n, 8),), model, budget)"
        )
    for name, size in (("low", low), ("multiple_of", multiple_of), *([] if high is None else [("high", high)])):
        whole(name, size, least=1, example="8")
    if overhead_limit is not None and number("overhead_limit", overhead_limit, example="0.5") < 0:
        raise ArgumentError(f"overhead_limit={overhead_limit!r} is out of range: write a fraction, 0.5 for 50 %")
    yes_or_no("verify", verify)
    function("loss", loss, "loss=lambda output: output.mean()")
    function("watch", watch, "watch=print")


def _budget_B(budget: int | str | Budget, machine: str | None) -> int:
    """A budget in bytes.

    Raises:
        BudgetError: if it is a share of something that grows with the batch.
    """
    asked = parse_budget(budget)

    def plain_B() -> NoReturn:
        raise BudgetError(
            f"a budget of {asked} grows with the batch, so that every batch fits it: write bytes, "
            '"6GiB", or "60%" of the device'
        )

    def device_B() -> int:
        if machine is None:
            return device_memory_B("cuda" if torch.cuda.is_available() else "cpu")
        memory_B = load_machine(machine).memories[0].capacity_B
        if memory_B is None:
            raise BudgetError(f"the machine {machine!r} does not say how much memory it has: write the budget in bytes")
        return memory_B

    return asked.in_B(plain_B, device_B)


def _bounds(low: int, high: int | None, multiple_of: int) -> tuple[int, int | None]:
    """The least and the largest multiple.

    Raises:
        LowtideError: if there is none between them.
    """
    low = -(-low // multiple_of) * multiple_of
    high = None if high is None else high // multiple_of * multiple_of
    if high is not None and high < low:
        raise LowtideError(f"no multiple of {multiple_of} lies between low and high: raise high to {low}")
    return low, high


def _two(low: int, high: int | None, step: int) -> tuple[int, int]:
    """Two sizes to see what varies: of those to consider if there are two, and not 1, which torch treats apart."""
    first = max(low, -(-2 // step) * step)
    if high is not None and first + step > high and first - step >= low:
        return first - step, first
    return first, first + step
