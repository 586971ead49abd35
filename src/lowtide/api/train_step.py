"""`lowtide.TrainStep`: forward, loss, backward and the optimizer's step as one plan."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch

from lowtide.api.fit import Compiled
from lowtide.api.memory import MemoryStats, memory_stats
from lowtide.api.transfers import Transfers, transfers
from lowtide.arguments import function, number, shown, whole, yes_or_no
from lowtide.capture.whole_step import GATHERED
from lowtide.device.process_groups import is_data_parallel
from lowtide.errors import (
    ArgumentError,
    BudgetError,
    BudgetWarning,
    CaptureError,
    LowtideError,
    OptimizerError,
    VerificationError,
)
from lowtide.ir.compilers import EAGER
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import DEFAULT_WORK
from lowtide.ops.updates import MASTER
from lowtide.pipeline import SHAPE_LIMIT_s
from lowtide.planners.base import Watch
from lowtide.record import PlanOptions
from lowtide.results.plan import Plan
from lowtide.session.budget_scope import BudgetScope, Scope
from lowtide.session.dynamo_call import compiled_call
from lowtide.session.handle import Fitted, keep
from lowtide.session.live_optimizer import LiveOptimizer
from lowtide.session.member import Member, check_model, check_optimizer
from lowtide.session.objective import Objective
from lowtide.session.optimizer_hooks import STEPPING
from lowtide.session.options import HostBudget, Rate, implementation_options, offload_options
from lowtide.session.session import Session, SeveralGraphs
from lowtide.session.whole_step import Steps
from lowtide.units import Budget, parse_budget

if TYPE_CHECKING:
    from lowtide.api.verify.verified_steps import FirstWholeSteps

_COMPILED = (
    'verify=True with compiler="inductor": steps are verified against a plain loop, whose bits these are not. Leave '
    "verify= out, and compare a few steps with a loop over torch.compile(copy.deepcopy(model))."
)
_NO_MASTERS = (
    "verify=True with master_weights=True: plain PyTorch has no step with master weights to compare with. Leave one of "
    "them out."
)
_STEPPED: weakref.WeakKeyDictionary[torch.optim.Optimizer, weakref.ref[TrainStep]] = weakref.WeakKeyDictionary()


class TrainStep:
    """One step of training, called with a batch: `loss = step(inputs, targets)`.

    Nothing is planned yet: the first call of each shape captures, measures and plans, before anything has run. The
    loss comes back detached; `.backward()`, `optimizer.step()` and `zero_grad()` are not called. Model and optimizer
    stay what they are: evaluate, save and load them, and step schedulers, as ever.

    Arguments:
        model: any `nn.Module`.
        loss_fn: called with the model's result and the targets; None where the model itself gives the loss, or an
            object or dict in which it is called `loss`.
        optimizer: of parameters of the model. Those of `torch.optim` that step each parameter by itself do so as soon
            as its gradient is complete; any other one steps at the end, as it is.
        budget: bytes, "6GiB", "60%" of the device, "60% of plain"; see `parse_budget`.
        host_budget, link: bytes of host memory, or "64GiB", in which values, parameters and optimizer state may live
            outside the budget, within a limit of its own; bandwidth limit in each direction, "12 GB/s". On CPU the host
            is memory outside the arena.
        targets: how many of the batch's last arguments are for `loss_fn`.
        autocast: dtype of an autocast region round model and loss.
        clip_norm: the most that the norm of all gradients may be; as `torch.nn.utils.clip_grad_norm_`.
        norm_type: of that norm.
        accumulate: how many calls make one step: gradients of the others are added up, as autograd adds them to
            `.grad`. Their mean is the step's if `loss_fn` divides by that number.
        master_weights: whether parameters of fewer than 32 bits are roundings of float32 copies, which the optimizer
            steps. They are saved with `TrainStep.state_dict`.
        scope, numerics, without, seed, work, time_limit_s, shape_limit_s, dynamic, compiler, watch: as for
            `lowtide.fit`.
        verify: whether the first step of every shape is compared with that of a plain loop, bit by bit, before it is
            taken: losses, parameters, buffers, the optimizer's state, generators. Copies take the steps, which needs
            memory for a copy and a plain step. Where bits differ that should not, `VerificationError` is raised, and
            nothing has been changed.

    Raises:
        ArgumentError: if an argument is of the wrong kind or out of range.
        BudgetError, LinkError: if a budget or the link is malformed.
        NumericsError: if there is no such level, or nothing of the name that is to be left out.
        OptimizerError: if the optimizer is none, steps what is not the model's, or is another step's already.
        LowtideError: if the model is fitted.
        VerificationError: if `verify` and `master_weights` are both given, or `verify` and compiled kernels.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: Callable[..., torch.Tensor] | None,
        optimizer: torch.optim.Optimizer,
        budget: int | str | Budget,
        *,
        host_budget: HostBudget = None,
        link: Rate = None,
        targets: int = 1,
        autocast: torch.dtype | None = None,
        clip_norm: float | None = None,
        norm_type: float = 2.0,
        accumulate: int = 1,
        master_weights: bool = False,
        scope: Scope = "step",
        numerics: str | Numerics = Numerics.EXACT,
        without: Collection[str] = (),
        seed: int = 0,
        work: int = DEFAULT_WORK,
        time_limit_s: float | None = None,
        shape_limit_s: float | None = SHAPE_LIMIT_s,
        dynamic: bool | None = None,
        compiler: str = EAGER,
        verify: bool = False,
        watch: Watch | None = None,
    ) -> None:
        _check_options(model, loss_fn, targets, autocast, clip_norm, norm_type, accumulate, master_weights)
        yes_or_no("dynamic", dynamic, or_none=True)
        yes_or_no("verify", verify)
        if verify and master_weights:
            raise VerificationError(_NO_MASTERS)
        function("watch", watch, "watch=print")
        if verify and compiler != EAGER:
            raise VerificationError(_COMPILED)
        moves, menu = offload_options(host_budget, link), implementation_options(numerics, without)
        options = PlanOptions(
            budget=parse_budget(budget),
            seed=seed,
            work=work,
            time_limit_s=time_limit_s,
            compiler=compiler,
            **menu,
            **moves,
        )
        options = dataclasses.replace(options, shape_limit_s=shape_limit_s)
        if moves["host_budget_B"]:
            _check_placement(model)
        self._objective = Objective(model, loss_fn, targets, autocast, _device_of(model))
        _check(self._objective, model, optimizer)
        self._model, self._optimizer = model, optimizer
        self._live = LiveOptimizer(optimizer, master_weights=master_weights)
        self._accumulate, self._waiting = accumulate, 0
        alive = weakref.ref(self._objective)
        self._steps = Steps(self._live, lambda: _parameters(alive), clip_norm, float(norm_type), accumulate > 1)
        self._steps.moves = moves["host_budget_B"] != 0
        member = _member(self._objective, self._live, accumulate > 1)
        budget_scope = BudgetScope(scope, [member], rehouses=moves["host_budget_B"] != 0)
        session = Session(options, budget_scope, None, watch, whole=self._steps, whole_model=True)
        self._handle = keep(Fitted(session, member))
        self._objective.lowtide = self._handle  # type: ignore[assignment]
        self._compiled: Compiled | None = Compiled(
            lambda: compiled_call(self._objective, session.backend, dynamic, exact=session.is_exact, compiler=compiler)
        )
        self._turn = threading.RLock()
        self._layouts: dict[tuple[Any, ...], int] = {}
        self._moved = False
        self._first: FirstWholeSteps | None = None
        if verify:
            from lowtide.api.verify.verified_steps import FirstWholeSteps  # which steps copies by this class
            from lowtide.api.verify.whole_steps import Recipe

            recipe = Recipe(clip_norm, float(norm_type), accumulate)
            self._first = FirstWholeSteps(self._objective, self._steps, recipe, session, dynamic)
        self._hook = optimizer.register_load_state_dict_post_hook(self._loaded)
        _STEPPED[optimizer] = weakref.ref(self)
        if reason := self._live.opaque:
            warnings.warn(
                f"{reason}: its gradients are kept to the end of the step, and it steps there as a whole.",
                BudgetWarning,
                stacklevel=2,
            )

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Takes one step.

        Returns: the loss, detached.

        Raises:
            InfeasibleBudget: if no plan fits; nothing has been changed.
            CaptureError: if the step is not one graph with one loss.
            VerificationError: if it was to be verified, and is refused; nothing has been changed.
        """
        with self._turn:
            compiled = self._prepared()
            if self._first is not None:
                self._first.begin(args, kwargs)
            loss = self._run(compiled, args, kwargs)
            last = self._steps.updates
            self._waiting = 0 if last else self._waiting + 1
            if last:
                self._after()
            return loss

    def look(self, *args: Any, **kwargs: Any) -> Plan:
        """Plans the step for a batch, and takes none: nothing is computed, and nothing changes.

        Returns: the plan, which is not activated: `step.plan` is that of the latest step.

        Raises:
            InfeasibleBudget: if no plan fits.
            CaptureError: if the step is not one graph with one loss.
        """
        with self._turn:
            compiled, session = self._prepared(), self._handle.session
            with session.dry() as calls, torch.enable_grad():
                compiled(*args, **kwargs)
            if len(calls) != 1:
                raise CaptureError(_broken(session))
            return Plan(session.plan_calls(calls, install=False))

    @property
    def waiting(self) -> int:
        """The number of calls whose gradients wait for their step."""
        return self._waiting

    def flush(self) -> bool:
        """Steps with the gradients of the calls so far, where fewer were made than make a step.

        Returns: whether there were any.
        """
        with self._turn:
            waited, self._waiting = self._waiting, 0
            self._live.regroup()
            if waited and self._live.opaque:
                self._after()
            elif waited:
                self._step_gathered()
                self._optimizer._opt_called = True  # type: ignore[attr-defined]
            return bool(waited)

    def _step_gathered(self) -> None:
        """Steps parameters whose updates stood in no plan, where plans have left space for it."""
        hard_budget = self._handle.session.budget_scope.hard_budget
        with hard_budget.rested(STEPPING) if hard_budget is not None else contextlib.nullcontext(), torch.no_grad():
            self._steps.flush()

    def zero_grad(self) -> None:
        """Frees gradients that wait for their step."""
        with self._turn:
            self._waiting = 0
            self._steps.forget_gathered()
            self._optimizer.zero_grad()

    def _prepared(self) -> Compiled:
        """The compiled step, with everything that tells one kind of step from another as it is now.

        Raises:
            LowtideError: if the step was closed.
            BudgetError: if the model has gone where nothing can be placed on the host.
        """
        if self._compiled is None:
            raise LowtideError("this step was closed: make a new one")
        if self._steps.moves:
            _check_placement(self._model)
        self._steps.updates = self._waiting + 1 >= self._accumulate
        self._live.regroup()
        kind = self._layouts.setdefault(self._live.layout(), len(self._layouts))
        self._handle.session.step_key = (kind, self._steps.updates)
        self._bring_in()
        return self._compiled

    def _run(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        session = self._handle.session
        before = session.calls
        try:
            with session.step(), torch.enable_grad():
                result = compiled(*args, **kwargs)
        except SeveralGraphs:
            raise CaptureError(_broken(session)) from None
        if session.calls == before:
            raise CaptureError(_broken(session))
        loss: torch.Tensor = result.detach().clone()  # some losses are one number in as many bytes as the output
        return loss

    def _after(self) -> None:
        """Steps an opaque optimizer, and counts the step as schedulers expect."""
        if self._live.opaque:
            self._steps.hand_over_gathered()
            if self._steps.clip_norm is not None:
                trained = [p for p in self._objective.parameters() if p.grad is not None]
                norm = torch.nn.utils.clip_grad_norm_(trained, self._steps.clip_norm, self._steps.norm_type)
                self._steps.total_norm = norm
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._steps.forget_gathered()
        elif self._steps.gathered:  # only earlier calls had gradients for these
            self._step_gathered()
        self._optimizer._opt_called = True  # type: ignore[attr-defined]

    def _loaded(self, _: torch.optim.Optimizer) -> None:
        self._moved = True

    def _bring_in(self) -> None:
        """Copies state that was loaded to where the state before lay."""
        if self._moved:
            self._moved = False
            self._handle.session.budget_scope.bring_in()

    def state_dict(self) -> dict[str, Any]:
        """State outside model and optimizer: float32 copies of parameters, and gradients that wait for their step.

        Save it with `model.state_dict()` and `optimizer.state_dict()` where either is in use; it is empty otherwise.

        Returns: by the parameter's name, tensors that go on living in the step: copy or save them before the next one.
        """
        names = {id(p): name for name, p in self._model.named_parameters()}
        updaters = {names[key]: u for key, u in self._live.updaters.items() if key in names}
        return {
            "waiting": self._waiting,
            MASTER: {name: u.master for name, u in updaters.items() if u.master is not None},
            GATHERED: {names[key]: u.gather() for key, u in self._steps.gathered.items() if key in names},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a saved state; load the model's and the optimizer's first.

        Raises:
            OptimizerError: if it names a parameter that this step does not train.
        """
        parameters, groups = dict(self._model.named_parameters()), self._live.groups()
        with self._turn, torch.no_grad():
            self._steps.forget_gathered()
            self._waiting = int(state["waiting"])
            for kind in (MASTER, GATHERED):
                for name, tensor in state[kind].items():
                    parameter = parameters.get(name)
                    if parameter is None or id(parameter) not in groups:
                        raise OptimizerError(f"the saved state is of another model: this step does not train {name!r}")
                    updater = self._live.updater_of(parameter, groups[id(parameter)])
                    if kind == GATHERED:
                        self._steps.gathered[id(parameter)] = updater
                        updater.gather().copy_(tensor)
                    elif updater.master is not None:
                        updater.master.copy_(tensor)
                        updater.stepped()

    # what people ask -------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan | None:
        """The latest plan; None before the first step."""
        return self._handle.plan

    @property
    def plans(self) -> list[Plan]:
        """Every active plan, one per shape: of the 64 that were used last."""
        return self._handle.plans

    @property
    def total_norm(self) -> torch.Tensor | None:
        """The norm of all gradients in the latest step, before they were clipped; None without clipping."""
        return self._steps.total_norm

    @property
    def opaque(self) -> str:
        """Why the optimizer steps as a whole at the end; empty where each update stands in the plan."""
        return self._live.opaque

    def explain(self, top: int = 20, *, verbose: bool = False) -> str:
        """The plan's answer, the values that matter, and how the optimizer steps, as text; see `Plan.explain`.

        Raises:
            LowtideError: before the first step.
        """
        plan = self.plan
        if plan is None:
            raise LowtideError("there is no plan before the first step: take one, then explain")
        return f"{plan.explain(top, verbose=verbose)}\n{self._says()}"

    def _says(self) -> str:
        name = type(self._optimizer).__name__
        if reason := self._live.opaque:
            return f"{name} steps as a whole behind the backward: {reason}."
        return f"{name} updates each parameter inside the plan, as soon as its gradient is complete."

    def memory_stats(self) -> MemoryStats:
        """Bytes that the budget holds now, and how plans did; see `lowtide.memory_stats`."""
        return memory_stats(self._objective)

    def transfers(self) -> Transfers:
        """Bytes that were offloaded and prefetched, and how long compute waited; see `lowtide.transfers`."""
        return transfers(self._objective)

    def set_budget(self, budget: int | str | Budget) -> None:
        """Changes the budget; the next call of each shape is planned anew, nothing is compiled again."""
        self._handle.set_budget(budget)

    def close(self) -> None:
        """Ends the step: model and optimizer are plain ones, their arena closes when its last tensor has gone."""
        with self._turn:
            if self._compiled is None:
                return
            self._handle.leave()
            self._hook.remove()
            self._live.forget()
            _STEPPED.pop(self._optimizer, None)
            self._compiled = None


def session_of(step: TrainStep) -> Session:
    """The session of a step's captured graphs."""
    return step._handle.session


def set_host_resident(step: TrainStep, host_resident: frozenset[tuple[int, str]] | None) -> None:
    """Has a step keep on the host what a plan of the same step of another model has put there.

    Arguments:
        host_resident: by the parameter's place in the objective, and the name.
    """
    step._steps.set_host_resident(host_resident)


def _parameters(objective: weakref.ref[Objective]) -> tuple[torch.Tensor, ...]:
    found = objective()
    return () if found is None else tuple(found.parameters())


def _member(objective: Objective, live: LiveOptimizer, gathers: bool) -> Member:
    """The member of a whole step: the objective's tensors, and optimizer state that plans know. Held weakly.

    Arguments:
        gathers: whether parameters may be stepped behind a plan, with gradients of earlier calls.
    """
    alive = weakref.ref(objective)

    def tensors() -> tuple[torch.Tensor, ...]:
        found = alive()
        if found is None:
            return ()
        state = tuple(live.tensors())
        return (*found.parameters(), *found.buffers(), *state)

    return Member(
        tensors,
        lambda: live.optimizer if live.opaque else None,
        lambda: live.updates_B() if gathers and not live.opaque else 0,
    )


def _check(objective: Objective, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuses what cannot be stepped.

    Raises:
        OptimizerError, LowtideError: see `TrainStep`.
    """
    check_optimizer(optimizer)
    if isinstance(getattr(model, "lowtide", None), Fitted):
        raise LowtideError("the model is fitted: call lowtide.unfit(model) first; a step has a budget of its own")
    mine = {id(p) for p in objective.parameters()}
    foreign = sum(id(p) not in mine for group in optimizer.param_groups for p in group["params"])
    if foreign:
        raise OptimizerError(
            f"{foreign} of the optimizer's parameters belong neither to the model nor to loss_fn: make them part of "
            "the model, or give them an optimizer of their own."
        )
    other = _STEPPED.get(optimizer)
    if other is not None and other() is not None:
        raise OptimizerError("the optimizer belongs to another step already: call its close() first")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise OptimizerError("LBFGS evaluates the model several times a step: use lowtide.fit, and a closure.")


def _check_options(
    model: object,
    loss_fn: object,
    targets: object,
    autocast: object,
    clip_norm: object,
    norm_type: object,
    accumulate: object,
    master_weights: object,
) -> None:
    """Raises:
    ArgumentError: if one of them is of the wrong kind or out of range.
    """
    check_model(model)
    if is_data_parallel(model):
        raise ArgumentError(
            "the model is in DistributedDataParallel, and TrainStep updates a parameter as soon as its gradient is "
            "complete, before the ranks could reduce it: train with lowtide.fit"
        )
    function("loss_fn", loss_fn, "loss_fn=torch.nn.functional.cross_entropy")
    whole("targets", targets, example="1")
    whole("accumulate", accumulate, least=1, example="4")
    yes_or_no("master_weights", master_weights)
    if autocast is not None and not isinstance(autocast, torch.dtype):
        raise ArgumentError(f"autocast={shown(autocast)} is no dtype: write autocast=torch.bfloat16, or None")
    if clip_norm is not None:
        number("clip_norm", clip_norm, above=0.0, example="1.0")
    if norm_type != math.inf:
        number("norm_type", norm_type, above=0.0, example="2.0")


def _check_placement(model: torch.nn.Module) -> None:
    """Refuses to place parameters and optimizer state on the host where only CPU memory can be exchanged.

    Raises:
        BudgetError: if a parameter lies on a GPU.
    """
    device = next((p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")), None)
    if device is not None:
        raise BudgetError(
            f"host_budget= of a TrainStep places parameters and optimizer state on the host, which is there for CPU "
            f"memory alone yet, and this model lies on {device}. Leave host_budget= out, or train with "
            "lowtide.fit(model, budget=..., host_budget=...), which offloads values of the step."
        )


def _device_of(model: torch.nn.Module) -> str:
    first = next(model.parameters(), None)
    return "cpu" if first is None else first.device.type


def _broken(session: Session) -> str:
    """The error's text where the model breaks into several graphs."""
    where = "; ".join(f"{b.source}: {b.cause}" if b.source else b.cause for b in session.breaks)
    return (
        "a whole step is one graph, and this one breaks into several"
        + (f" ({where})" if where else "")
        + ". Mend the break (TORCH_LOGS=graph_breaks shows it), or train with lowtide.fit, which takes broken models."
    )
