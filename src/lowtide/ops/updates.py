"""Optimizers as operators: one parameter is stepped by the optimizer's own code, with its own flags.

An optimizer is *separable* if stepping its parameters one by one, each as soon as its gradient is there, does what
one call of `step` does for all. Its code then runs on a twin that holds a single parameter: arithmetic, defaults and
choices between loops, `foreach` and `fused` remain the optimizer's business.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lowtide.ir.graph import Graph, Recipe
from lowtide.ops.base import Kernel
from lowtide.ops.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

PREFIX = "lowtide.update."
LIVE = "by"
"""The keyword that says on whose behalf a kernel runs; it decides nothing about what a run costs."""
MASTER = "master"
"""Name of the state that is the parameter itself, in more bits."""
_SOME = "some"  # in flags, a number that is not zero
_SMALL = 0.01  # a number that is not zero, where the class's default is


@dataclass(frozen=True, slots=True)
class Separable:
    """A class of `torch.optim` that steps its parameters independently of each other.

    Arguments:
        sums: whether its arithmetic sums over a gradient, so that its bits hang on the order of the elements.
    """

    name: str
    sums: bool = False

    @property
    def op(self) -> str:
        """The operator that steps one parameter."""
        return PREFIX + self.name.lower()


SEPARABLE: Mapping[str, Separable] = {
    s.name: s
    for s in (
        Separable("ASGD"),
        Separable("Adadelta"),
        Separable("Adafactor", sums=True),
        Separable("Adagrad"),
        Separable("Adam"),
        Separable("AdamW"),
        Separable("Adamax"),
        Separable("Muon", sums=True),
        Separable("NAdam"),
        Separable("RAdam"),
        Separable("RMSprop"),
        Separable("Rprop"),
        Separable("SGD"),
    )
}
"""By the name of the class. A further one is one more line, if `_init_group` makes all of its state but a momentum."""


class Steps(Protocol):
    """The side of a kernel that knows the real optimizer."""

    def step(self, weight: Tensor, gradient: Tensor, states: Mapping[str, Tensor]) -> None:
        """Steps the parameter, whose content and state are in these tensors."""


def update(
    weight: Tensor,
    gradient: Tensor,
    states: Sequence[Tensor] = (),
    *,
    optimizer: str,
    flags: str,
    names: str = "",
    by: Steps | None = None,
) -> Any:
    """Steps one parameter in place.

    Arguments:
        weight, gradient: of it.
        states: its state, without what has no dimension.
        optimizer: name of the class.
        flags: what decides the cost of a step; see `flags_of`.
        names: of the states.
        by: steps the real parameter; None steps these tensors alone, to learn what that costs.

    Returns: weight and states, or the weight alone if there are none.
    """
    found = dict(zip(names.split(), states, strict=True))
    if by is not None:
        by.step(weight, gradient, found)
    else:
        model = _model(optimizer, flags, weight.dim())
        advance(model.optimizer, model.optimizer.param_groups[0], weight, gradient, {**model.state, **found})
    return (weight, *states) if states else weight


def advance(
    optimizer: Optimizer, group: Mapping[str, Any], weight: Tensor, gradient: Tensor, state: dict[str, Any]
) -> None:
    """Steps one parameter; where its state has a master, that one, of which the parameter is then a rounding.

    Arguments:
        optimizer, group: see `step_alone`.
        weight, state: overwritten.
    """
    master = state.pop(MASTER, None)
    if master is None:
        step_alone(optimizer, group, weight, gradient, state)
    else:
        step_alone(optimizer, group, master, gradient.to(master.dtype), state)
        weight.detach().copy_(master)


def step_alone(
    optimizer: Optimizer, group: Mapping[str, Any], weight: Tensor, gradient: Tensor, state: dict[str, Any]
) -> None:
    """Runs an optimizer's own step for one parameter.

    Arguments:
        optimizer: not changed; hooks and a `step` of the object itself are left out.
        group: the options.
        weight, state: overwritten.
    """
    alone = weight.detach()
    alone.grad = gradient.clone() if overwrites_gradient(group, weight) else gradient
    twin = twin_for(optimizer, group, alone, state)
    type(optimizer).step(twin)


def overwrites_gradient(group: Mapping[str, Any], weight: Tensor) -> bool:
    """Whether a step may write over the gradient, which others may read: Nesterov's momentum over lists of tensors."""
    foreach = group.get("foreach")
    return (
        bool(group.get("nesterov")) and not group.get("fused") and bool(weight.is_cuda if foreach is None else foreach)
    )


def twin_for(optimizer: Optimizer, group: Mapping[str, Any], weight: Tensor, state: dict[str, Any]) -> Optimizer:
    """An optimizer of the same class over one parameter, that shares everything else with the first."""
    twin: Optimizer = object.__new__(type(optimizer))
    twin.__dict__.update((k, v) for k, v in vars(optimizer).items() if k != "step")
    twin.param_groups = [{**group, "params": [weight]}]
    twin.state = {weight: state}  # type: ignore[assignment]
    return twin


def options_of(group: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The options of a group as far as they decide what a step does: numbers only by whether they are zero."""
    return tuple((k, _flag(v)) for k, v in sorted(group.items()) if k != "params")


def flags_of(group: Mapping[str, Any]) -> str:
    """The same as text."""
    return json.dumps(dict(options_of(group)))


def _flag(option: Any) -> Any:
    if option is None or isinstance(option, bool | str):
        return option
    if isinstance(option, int | float):
        return _SOME if option else 0
    return _SOME


@dataclass(frozen=True, eq=False)
class _Model:
    """An optimizer to learn costs from, and what it holds for a parameter of one element."""

    optimizer: Optimizer
    state: dict[str, Any]


@functools.cache
def _model(name: str, flags: str, dimensions: int) -> _Model:
    """An optimizer with these flags, over a parameter with so many dimensions."""
    kind = getattr(torch.optim, name)
    shape = (1,) * dimensions if name != "Muon" else (1, 1)
    weight = torch.zeros(shape, requires_grad=True)
    made: Optimizer = kind([weight])
    group = made.param_groups[0]
    for key, flag in json.loads(flags).items():
        group[key] = _option(flag, group.get(key))
    own = made.state.get(weight)  # some make it with the optimizer: torch 2.11's Adagrad does
    return _Model(made, initial_state(made, group, weight, own))


def _option(flag: Any, default: Any) -> Any:
    if flag != _SOME:
        return flag
    return default or _SMALL


def initial_state(
    optimizer: Optimizer, group: Mapping[str, Any], weight: Tensor, known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The state that an optimizer makes for a parameter before its first step, without that step.

    A momentum that begins as the first gradient is made of negative zeros, to which that gradient is added.

    Arguments:
        optimizer, weight: are not changed; nothing is made of the weight's content.
        known: what there is already.
    """
    alone = weight.detach()
    alone.grad = torch.zeros((), dtype=alone.dtype, device=alone.device).expand(alone.shape)
    state: dict[str, Any] = dict(known or {})
    twin = twin_for(optimizer, group, alone, state)
    _begin(twin)
    if isinstance(optimizer, torch.optim.SGD) and group["momentum"] and state.get("momentum_buffer") is None:
        state["momentum_buffer"] = torch.full_like(alone, -0.0, memory_format=torch.preserve_format)
    return state


def _begin(optimizer: Optimizer) -> None:
    """Lets an optimizer make its state; into how many lists it sorts its tensors is its own affair."""
    begin: Any = optimizer._init_group  # type: ignore[attr-defined]
    lists = len(inspect.signature(begin).parameters) - 1
    begin(optimizer.param_groups[0], *([] for _ in range(lists)))


def _workspace_B(graph: Graph, recipe: Recipe) -> int:
    """Two temporaries of the weight's size, as loops over tensors take; none where one kernel does it all."""
    fused = any(key == "flags" and '"fused": true' in str(flags) for key, flags in recipe.kwargs)
    return 0 if fused else 2 * graph.values[recipe.reads[0].value].size_B


def laid_out(gradient: Tensor, weight: Tensor) -> Tensor:
    """A gradient with its elements in the parameter's order, as autograd keeps it."""
    return torch.empty_like(weight, memory_format=torch.preserve_format).copy_(gradient)


def gather(sum_: Tensor, gradient: Tensor) -> Tensor:
    """Adds a gradient to those before it, in place."""
    return sum_.add_(gradient)


def clip_coefficient(norms: Sequence[Tensor], *, max_norm: float, norm_type: float) -> tuple[Tensor, Tensor]:
    """The norm of all gradients from the norm of each, and what gradients are scaled by so that it is no more than so
    much: the arithmetic of `torch.nn.utils.clip_grad_norm_`.
    """
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]), norm_type)
    return total, torch.clamp(max_norm / (total + 1e-6), max=1.0)


UPDATES: Mapping[str, Kernel] = {
    **{s.op: Kernel(update, workspace_B=_workspace_B) for s in SEPARABLE.values()},
    "lowtide.laid_out": Kernel(laid_out),
    "lowtide.gather": Kernel(gather),
    "lowtide.clip_coefficient": Kernel(clip_coefficient),
}
"""Every operator between a gradient and the parameter that it updates."""
