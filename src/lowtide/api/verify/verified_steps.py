"""`fit(verify=True)`, and `TrainStep`: the first step of every shape, compared with plain PyTorch's.

A step is verified before it is taken, for the gradients that are expected. Where its backward is given others, what ran
was planned in that backward: then the same is done for these, when the backward has ended and no optimizer has used
what it gave.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.api.fit import VERIFIED_ALONE
from lowtide.api.verify.taking_steps import Beforehand, GradientLayouts, Subject, guessed_layouts, watch_gradients
from lowtide.api.verify.verify import STEPS, verified
from lowtide.api.verify.whole_steps import Recipe
from lowtide.device.arrivals import Arrivals, GradientLayout
from lowtide.device.autocasting import Autocasting
from lowtide.device.engine_passes import at_end_of_backward, number_of_engine_pass
from lowtide.device.trees import leaves_of
from lowtide.errors import VerificationError
from lowtide.results.plan import Plan
from lowtide.results.verification import Verification
from lowtide.session.active_plans import ACTIVE_STEPS
from lowtide.session.objective import Objective
from lowtide.session.session import Session
from lowtide.session.whole_step import Steps

_MOST_ARRIVALS = 64
_BEFORE = "this step was verified before it is taken, and is refused; nothing has been changed."
_BEHIND = (
    "gradients came to this backward for which no step had been verified (of {outputs}), and it was planned "
    "for them. It was verified when it had run, and is refused. It has added to `.grad`, and the forward before it has "
    "changed buffers and random generators; no parameter and no state of an optimizer has been changed. Free the "
    "gradients (zero_grad), and take no optimizer step with them."
)
Key = tuple[Any, ...]


@dataclass(eq=False)
class Watched:
    """A call of a fitted model whose backward may come.

    Arguments:
        key: what distinguishes it from calls that are verified by themselves.
        modes: of the model's modules: which train.
        args, kwargs: of the call.
        arrivals: how gradients were known to come when it began.
        autocast: when it began.
        came: gradients that have come in the pass of autograd's engine that runs, or ran last: sizes and strides.
        number: of that pass.
    """

    key: Key
    modes: tuple[bool, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arrivals: Mapping[str, Arrivals]
    autocast: Autocasting
    came: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    number: int = -1


class FirstSteps:
    """Verifies the first step of every shape of a fitted model, and of every way in which its gradients come.

    Arguments:
        model, optimizer: of which copies take the steps.
        session: of the fitted model, which gets the plans that were verified.
        dynamic: as for `lowtide.fit`.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, session: Session, dynamic: bool | None
    ) -> None:
        self.turn = threading.RLock()
        self._model = weakref.ref(model)
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self._session, self._dynamic = session, dynamic
        self._verified: dict[
            Key, list[GradientLayouts | None]
        ] = {}  # those used last at the end; None for guessed gradients
        self._latest: GradientLayouts | None = None  # how gradients came last
        self._after: dict[GradientLayouts, GradientLayouts] = {}  # which way came after which: losses may alternate

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Watched | None:
        """Verifies a call, if none like it has been.

        Returns: the call, for `watch`; None where no backward can follow.

        Raises:
            VerificationError: if its bits are not those of plain PyTorch, or that cannot be found out.
        """
        model, trains = self._model(), torch.is_grad_enabled()
        assert model is not None, "it is being called"
        modes, autocast = _modes(model), Autocasting.now()
        key = (*_shapes(args, kwargs), modes, trains, autocast, self._session.options.budget)
        call = Watched(key, modes, args, kwargs, dict(self._session.arrivals), autocast)
        if key not in self._verified:
            expected = None if self._latest is None or not trains else self._after.get(self._latest, self._latest)
            self._verify(call, expected, _BEFORE)
        self._verified[key] = self._verified.pop(key)
        return call if trains else None

    def watch(self, call: Watched, results: Any) -> None:
        """Looks at the gradients that will come to what a call returned."""
        known = self._verified[call.key]
        if None in known:
            known[known.index(None)] = guessed_layouts(results)

        def came(name: str, gradient: torch.Tensor | None) -> None:
            if gradient is None:
                return
            if call.number != (number := number_of_engine_pass()):
                call.number, call.came = number, {}
                at_end_of_backward(lambda: self._ended(call))
            call.came[name] = (tuple(gradient.shape), gradient.stride())

        watch_gradients(results, came)

    def _ended(self, call: Watched) -> None:
        """A backward has ended: verifies it, if its gradients came as in none that was."""
        call.number = -1
        gradient_layouts = frozenset((name, GradientLayout.of(*found)) for name, found in call.came.items())
        if self._latest is not None:
            if len(self._after) >= _MOST_ARRIVALS:
                self._after.clear()
            self._after[self._latest] = gradient_layouts
        self._latest = gradient_layouts
        model = self._model()
        if model is None or self._is_known(call) or _modes(model) != call.modes:
            return  # after a change of modes, the step is verified when it comes again
        with self.turn, torch.enable_grad(), call.autocast.restored():
            self._session.end_observation()
            self._verify(call, gradient_layouts, _BEHIND.format(outputs=", ".join(sorted(call.came))))

    def _is_known(self, call: Watched) -> bool:
        """Whether a step was verified in which gradients came as they did in this one."""
        for gradient_layouts in self._verified.get(call.key, ()):
            layouts = dict(gradient_layouts or ())
            if layouts.keys() == call.came.keys() and all(layouts[n].serves(*found) for n, found in call.came.items()):
                return True
        return False

    def _verify(self, call: Watched, gradient_layouts: GradientLayouts | None, refusal: str) -> None:
        """Compares steps of copies.

        Raises:
            VerificationError: if bits differ that should not, or that cannot be found out.
        """
        model, session = self._model(), self._session
        assert model is not None, "it is being called"
        if len(session.budget_scope.members) > 1:  # another model has come to share the budget
            raise VerificationError(VERIFIED_ALONE)
        planned = {**_options(session, self._dynamic), "plan": None if session.given is None else Plan(session.given)}
        optimizer = None if self._optimizer is None else self._optimizer()
        subject = Subject(model, call.args, call.kwargs, optimizer, gradient_layouts=gradient_layouts)
        known = Beforehand(session.lookup, call.arrivals)
        _refuse(verified(subject, planned, session.options.numerics, STEPS, known), refusal)
        self._verified.setdefault(call.key, []).append(gradient_layouts)
        _shorten(self._verified)


class FirstWholeSteps:
    """Verifies the first whole step of every shape, before it is taken.

    Arguments:
        objective: the model with its loss, of which copies are stepped.
        steps: what the optimizer does.
        recipe: what else a step does.
        session: of the step, which gets the plans that were verified.
        dynamic: as for `TrainStep`.
    """

    def __init__(
        self, objective: Objective, steps: Steps, recipe: Recipe, session: Session, dynamic: bool | None
    ) -> None:
        self._objective = weakref.ref(objective)
        self._steps, self._recipe, self._session, self._dynamic = steps, recipe, session, dynamic
        self._verified: dict[Key, None] = {}  # those used last at the end

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Verifies a step of such batches, if none has been.

        Raises:
            VerificationError: if its bits are not those of a plain loop, or that cannot be found out.
        """
        objective, session = self._objective(), self._session
        assert objective is not None, "its step is taken"
        key = (*_shapes(args, kwargs), _modes(objective), Autocasting.now(), self._steps.live.layout())
        key = (*key, session.options.budget)
        if key not in self._verified:
            alike = Objective(
                objective.model, objective.loss, objective.targets, objective.autocast, objective.device
            ).train(objective.training)  # fmt: skip
            recipe = dataclasses.replace(self._recipe, host_resident=self._steps.host_resident_by_place)
            subject = Subject(alike, args, kwargs, self._steps.live.optimizer, recipe=recipe)
            options = _options(session, self._dynamic)
            known = Beforehand(session.lookup)
            _refuse(verified(subject, options, session.options.numerics, STEPS, known), _BEFORE)
        self._verified[key] = self._verified.pop(key, None)
        _shorten(self._verified)


def _options(session: Session, dynamic: bool | None) -> dict[str, Any]:
    """The arguments of `lowtide.fit`, and `TrainStep`, with which a session plans."""
    options = session.options
    return {
        "budget": options.budget, "scope": session.budget_scope.scope, "host_budget": options.host_budget_B,
        "link": options.link_Bps, "numerics": options.numerics, "without": options.without, "seed": options.seed,
        "work": options.work, "time_limit_s": options.time_limit_s, "shape_limit_s": options.shape_limit_s,
        "dynamic": dynamic, "watch": session.watch,
    }  # fmt: skip


def _refuse(found: Verification, refusal: str) -> None:
    """Raises:
    VerificationError: if bits differ that should not.
    """
    if not found.kept:
        raise VerificationError(f"{refusal}\n{found.explain()}", verification=found)


def _shorten(known: dict[Key, Any]) -> None:
    """Forgets what was used longest ago: a step not taken for long is planned again."""
    while len(known) > ACTIVE_STEPS:
        known.pop(next(iter(known)))


def _modes(model: torch.nn.Module) -> tuple[bool, ...]:
    return tuple(module.training for module in model.modules())


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """A key of a call: sizes, dtypes and devices of tensors, and everything that is none."""
    leaves = leaves_of((args, kwargs))
    return tuple((*t.shape, t.dtype, t.device) if isinstance(t, torch.Tensor) else repr(t) for t in leaves)
