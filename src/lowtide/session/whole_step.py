"""Whole training steps of one objective: what is added to its captured graphs, and how they run."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.capture.joint import is_tensor
from lowtide.capture.whole_step import GATHERED, WEIGHT, Clip, Update, WholeStep, whole_step
from lowtide.device.storage import identity_of
from lowtide.errors import CaptureError, OptimizerError
from lowtide.ir.housing import hosted_values
from lowtide.ir.plan import PlanRecord
from lowtide.ops.updates import LIVE, flags_of
from lowtide.profile.signature import geometry_of
from lowtide.runtime.executor import Key, Loaded, PlannedExecutor
from lowtide.runtime.updater import Updater
from lowtide.session.graph_discovery import Call
from lowtide.session.live_optimizer import LiveOptimizer
from lowtide.session.planning import MeasuredStep

_EMPTY, _TOKEN = torch.empty(0), torch.zeros(1, dtype=torch.int64)  # in the slots of what autograd need not keep
NO_GRADIENT = (
    "nothing is trained by this step: the loss does not depend on a parameter that requires a gradient and that the "
    "optimizer steps. Check requires_grad, and whether the optimizer was made of this model's parameters."
)


@dataclass(frozen=True, eq=False)
class Stepping:
    """One captured graph as a whole step.

    Arguments:
        results: how many of the forward's results the caller gets.
        numbers: how many of them are sizes, at the end.
        tangent: the gradient of the loss.
        added: what the backward is given besides, in the order in which it takes it.
        updaters: of the parameters that get a gradient.
        leaves: whether their gradients are handed to `.grad`, in that order.
        clips: whether the norm of all gradients is among the backward's results.
        movable: values that may be host-resident: a parameter, or what else is kept.
    """

    results: int
    numbers: int
    tangent: torch.Tensor
    added: tuple[tuple[Updater, str], ...]
    updaters: tuple[Updater, ...]
    leaves: bool = False
    clips: bool = False
    movable: Mapping[int, weakref.ref[torch.Tensor] | tuple[Updater, str]] = field(default_factory=dict)

    def host_resident(self, values: Iterable[int]) -> list[torch.Tensor]:
        """The tensors of values that are host-resident."""
        found = [self.movable[v] for v in values]
        parameters = [f() for f in found if isinstance(f, weakref.ref)]
        kept = self._tensors(f for f in found if not isinstance(f, weakref.ref))
        return [*(p for p in parameters if p is not None), *kept]

    def kept(self) -> list[torch.Tensor]:
        """The tensors that the backward is given besides."""
        return self._tensors(self.added)

    def _tensors(self, which: Iterable[tuple[Updater, str]]) -> list[torch.Tensor]:
        known: dict[int, dict[str, torch.Tensor]] = {}
        found: list[torch.Tensor] = []
        for updater, name in which:
            if name == WEIGHT:
                found.append(updater.parameter)
            elif name == GATHERED:
                found.append(updater.gather())
            else:
                if id(updater) not in known:
                    known[id(updater)] = updater.tensors()
                found.append(known[id(updater)][name])
        return found

    def hand_on(self, results: list[Any], kept: Sequence[torch.Tensor]) -> list[Any]:
        """Takes what is for the backward out of the forward's results, as autograd would pass it.

        Arguments:
            kept: what it is given besides.
        """
        end = len(results) - self.numbers
        backward = [*results[end:], *results[self.results : end], self.tangent, *kept]
        results[self.results : end - 1] = [_EMPTY] * (end - 1 - self.results)
        results[end - 1] = _TOKEN
        return backward


@dataclass(eq=False)
class Steps:
    """Adds the optimizer's updates to a session's graphs (`lowtide.session.session.Whole`).

    Arguments:
        live: the optimizer.
        order: gives the parameters in the order in which people pass them to be clipped.
        clip_norm, norm_type: of all gradients together; None where nothing is clipped.
        gathers: whether gradients of several calls are added up.
        updates: whether the call at hand is the last of them.
        moves: whether anything may be offloaded.
        total_norm: of the latest step, if it clipped.
        gathered: by identity of the parameter, those with gradients of earlier calls.
    """

    live: LiveOptimizer
    order: Callable[[], Iterable[torch.Tensor]]
    clip_norm: float | None = None
    norm_type: float = 2.0
    gathers: bool = False
    updates: bool = True
    moves: bool = False
    total_norm: torch.Tensor | None = None
    gathered: dict[int, Updater] = field(default_factory=dict)
    _steppings: dict[tuple[int, Key], Stepping] = field(default_factory=dict)
    _host_resident: frozenset[tuple[int, str]] | None = None  # what lives on the host, by parameter and name

    def complete(self, call: Call) -> None:
        """Merges a captured graph's segments and adds what the optimizer does."""
        joint = call.specialised.captured.joint
        if not joint.trains:
            raise CaptureError(NO_GRADIENT)
        _check_parameters(call)
        _check_loss(call)
        groups, rank = self.live.groups(), {id(p): i for i, p in enumerate(self.order())}
        trained = [(v, t) for v, t in call.contents.items() if id(t) in groups and _gets_gradient(call, v)]
        if not trained:
            raise CaptureError(NO_GRADIENT)
        trained.sort(key=lambda entry: rank.get(id(entry[1]), len(rank)))
        updaters = {v: self.live.updater_of(t, groups[id(t)]) for v, t in trained}
        inside = not self.live.opaque
        stepped, leaves = inside and self.updates, not inside and not self.gathers
        whole = whole_step(
            call.specialised.graph,
            call.interfaces,
            call.specialised.held,
            tuple(self._update(v, updaters[v]) for v in updaters) if inside else (),
            clip=self._clip(updaters) if stepped else None,
            gathered=tuple(updaters) if self.gathers else (),
            leaving=tuple(updaters) if leaves else (),
            on_host=self.moves,
        )
        stepping = Stepping(
            results=len(joint.forward_outputs),
            numbers=len(call.specialised.captured.slots.numbers),
            tangent=_ones(joint.tangents[0].meta["val"]),
            added=tuple((updaters[weight], name) for weight, name in whole.added.values()),
            updaters=tuple(updaters.values()),
            leaves=leaves,
            clips=stepped and self.clip_norm is not None,
            movable={v: self._movable(call, whole, updaters, v) for v in whole.movable},
        )
        self._steppings[call.executor.number, call.key] = stepping
        call.become(whole, tuple(identity_of(t) for t in stepping.kept()))

    def placement(self, step: MeasuredStep) -> tuple[int, ...] | None:
        """The values that are host-resident, where another plan has chosen that already."""
        if self._host_resident is None:
            return None
        return tuple(v for v, what in self._stepping(step).movable.items() if _named(what) in self._host_resident)

    def settle(self, step: MeasuredStep, record: PlanRecord) -> None:
        """Notes what a plan has placed on the host, so that others keep it there."""
        movable = self._stepping(step).movable
        self._host_resident = frozenset(_named(movable[v]) for v in hosted_values(record.graph)) | (
            self._host_resident or frozenset()
        )

    @property
    def host_resident_by_place(self) -> frozenset[tuple[int, str]] | None:
        """The host-resident tensors, by the parameter's index and name; None where no plan has chosen."""
        place = {id(p): i for i, p in enumerate(self.order())}
        return (
            None
            if self._host_resident is None
            else frozenset((place[p], name) for p, name in self._host_resident if p in place)
        )

    def set_host_resident(self, host_resident: frozenset[tuple[int, str]] | None) -> None:
        """Takes what another model's plan has chosen, by the parameter's place and name."""
        order = [id(p) for p in self.order()]
        self._host_resident = (
            None if host_resident is None else frozenset((order[place], name) for place, name in host_resident)
        )

    def unsettle(self) -> None:
        """Lets the next plan choose."""
        self._host_resident = None

    def forget(self, graph: tuple[int, Key]) -> None:
        """Drops what a graph was given for a shape: number of its executor, and the shape."""
        self._steppings.pop(graph, None)

    def _stepping(self, step: MeasuredStep) -> Stepping:
        call = step.calls[0]
        return self._steppings[call.executor.number, call.key]

    def host_resident(self, step: MeasuredStep, record: PlanRecord) -> list[torch.Tensor]:
        """The tensors that a plan places on the host."""
        return self._stepping(step).host_resident(hosted_values(record.graph))

    def run(self, executor: PlannedExecutor, key: Key, loaded: Loaded, arguments: list[Any]) -> Sequence[Any]:
        """Runs a whole step; gradients of an optimizer that steps as a whole are in `.grad` then."""
        stepping = self._steppings[executor.number, key]
        self._check_norm(stepping)
        for updater in stepping.updaters:
            updater.refresh()
        kept = stepping.kept()
        arguments += [t for t, (_, name) in zip(kept, stepping.added, strict=True) if name != WEIGHT]
        results = list(loaded.run(0, arguments))
        backward = stepping.hand_on(results, kept)
        lease = getattr(backward[executor.token_at], "_lowtide_lease", None)
        gradients = loaded.run(1, backward, lease, executor.token_at)
        if stepping.clips:
            self.total_norm, gradients = gradients[0], gradients[1:]
        if stepping.leaves:
            for updater, gradient in zip(stepping.updaters, gradients, strict=True):
                _accumulate(updater.parameter, gradient)
        elif self.gathers:
            self.gathered.update((id(u.parameter), u) for u in stepping.updaters)
        if self.updates and not self.live.opaque:
            self._finish(stepping.updaters)
        return results

    def _check_norm(self, stepping: Stepping) -> None:
        """One norm is that of all gradients: those that only earlier calls had cannot be clipped by another.

        Raises:
            OptimizerError: before anything has run.
        """
        if not (self.updates and stepping.clips) or self.live.opaque:
            return
        late = len(self.gathered.keys() - {id(u.parameter) for u in stepping.updaters})
        if late:
            raise OptimizerError(
                f"clip_norm with accumulate: {late} parameters have gradients from earlier calls that this call gives "
                "none, and the norm of all is not known in one graph. Call step.flush() before it, or train with "
                "lowtide.fit and torch.nn.utils.clip_grad_norm_."
            )

    def _finish(self, updaters: Sequence[Updater]) -> None:
        """The step of these has been done; those that only earlier calls had gradients for remain gathered."""
        self.forget_gathered({id(u.parameter) for u in updaters})
        for updater in updaters:
            updater.stepped()

    def flush(self) -> bool:
        """Steps with the gradients that were gathered; returns whether there were any."""
        updaters = [self.gathered[k] for k in sorted(self.gathered, key=self._rank().__getitem__)]
        gradients = [u.gather() for u in updaters]
        if self.clip_norm is not None and gradients:
            self.total_norm = torch.nn.utils.get_total_norm(gradients, self.norm_type)
            torch.nn.utils.clip_grads_with_norm_(
                [_carrier(g) for g in gradients], self.clip_norm, self.total_norm
            )  # fmt: skip
        for updater, gradient in zip(updaters, gradients, strict=True):
            updater.refresh()
            updater.step(updater.parameter, gradient, updater.tensors())
            updater.stepped()
        self.forget_gathered()
        return bool(updaters)

    def hand_over_gathered(self) -> None:
        """Puts what was gathered where an optimizer that steps as a whole looks for it."""
        for updater in self.gathered.values():
            updater.parameter.grad = updater.gather()

    def _rank(self) -> dict[int, int]:
        place = {id(p): i for i, p in enumerate(self.order())}
        return {key: place.get(id(u.parameter), len(place)) for key, u in self.gathered.items()}

    def forget_gathered(self, keys: Collection[int] | None = None) -> None:
        """Frees gradients that were gathered, of all parameters or of some."""
        for key in list(self.gathered) if keys is None else [k for k in keys if k in self.gathered]:
            self.gathered.pop(key).gather().fill_(-0.0)

    def _update(self, value: int, updater: Updater) -> Update:
        kind, options = self.live.kind, self.live.optimizer.param_groups[updater.group]
        return Update(
            weight=value,
            op=kind.op,
            kwargs=(("optimizer", kind.name), ("flags", flags_of(options))),
            states=tuple((name, geometry_of(tensor)) for name, tensor in updater.tensors().items()),
            by=(LIVE, updater),
            laid_out=kind.sums,
            waits=not self.updates,
        )

    def _movable(
        self, call: Call, whole: WholeStep, updaters: Mapping[int, Updater], value: int
    ) -> weakref.ref[torch.Tensor] | tuple[Updater, str]:
        if value in call.contents:
            return weakref.ref(call.contents[value])
        weight, name = whole.added[value]
        return updaters[weight], name

    def _clip(self, order: Iterable[int]) -> Clip | None:
        if self.clip_norm is None:
            return None
        return Clip(max_norm=self.clip_norm, norm_type=self.norm_type, order=tuple(order))


def _named(what: weakref.ref[torch.Tensor] | tuple[Updater, str]) -> tuple[int, str]:
    """A key of a movable value that holds in any graph: its parameter, and the name of what is kept for it."""
    if isinstance(what, weakref.ref):
        return id(what()), WEIGHT
    updater, name = what
    return id(updater.parameter), name


def _carrier(gradient: torch.Tensor) -> torch.Tensor:
    """Something that has a tensor as its gradient, and no bytes for a content."""
    carrier = torch.empty((), dtype=gradient.dtype, device=gradient.device).expand(gradient.shape)
    carrier.grad = gradient
    return carrier


def _gets_gradient(call: Call, value: int) -> bool:
    """Whether the captured backward makes a gradient for a value."""
    joint, value_of = call.specialised.captured.joint, call.specialised.extraction.value_of
    for primal, gradient in zip(joint.primals, joint.backward_outputs, strict=False):
        if value_of.get(primal) == value:
            return isinstance(gradient, torch.fx.Node) and is_tensor(gradient)
    return False


def _check_parameters(call: Call) -> None:
    """Refuses a forward that changes a parameter itself.

    Raises:
        CaptureError: then.
    """
    joint, value_of = call.specialised.captured.joint, call.specialised.extraction.value_of
    for index, primal in enumerate(joint.primals):
        tensor = call.contents.get(value_of.get(primal, -1))
        if primal in joint.mutated and tensor is not None and tensor.requires_grad:
            raise CaptureError(
                f"the forward changes the parameter {joint.names.get(index, primal.name)} itself (as weight.data.mul_ "
                "does), and a whole step has one change of a parameter, which is the optimizer's. Change it between "
                "steps, or train with lowtide.fit, which takes such models."
            )


def _check_loss(call: Call) -> None:
    """Refuses what is no scalar loss, and gradients without bytes of their own.

    Raises:
        CaptureError: then.
    """
    joint = call.specialised.captured.joint
    shapes = [tuple(t.meta["val"].shape) for t in joint.tangents]
    if len(shapes) != 1 or any(n != 1 for n in shapes[0]):
        raise CaptureError(
            f"the loss of a step is one number, and this one has the shape {list(shapes[0]) if shapes else '?'}: "
            "reduce it (loss.mean()) in loss_fn, or in the model."
        )
    for primal, gradient in zip(joint.primals, joint.backward_outputs, strict=False):
        if isinstance(gradient, torch.fx.Node) and is_tensor(gradient):
            layout = gradient.meta["val"].layout
            if layout is not torch.strided:
                raise CaptureError(
                    f"the gradient of {primal.name} is sparse ({layout}), and its bytes depend on data: make the layer "
                    "with sparse=False, or train with lowtide.fit and step the optimizer yourself."
                )


def _accumulate(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Adds a gradient to `.grad` as autograd does."""
    if parameter.grad is not None:
        parameter.grad += gradient
    elif gradient.stride() == parameter.stride():
        parameter.grad = gradient.detach()
    else:
        parameter.grad = torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(gradient)


def _ones(loss: torch.Tensor) -> torch.Tensor:
    return torch.ones(tuple(loss.shape), dtype=loss.dtype, device=loss.device)
