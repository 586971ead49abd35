"""Gradients of a captured graph's inputs, handed to autograd one contribution at a time, in the order of eager.

Autograd adds up what the uses of a tensor contribute to its gradient, one by one, last use first. A captured graph has
one gradient per input, the sum over its own uses. Where other code uses the tensor too, another captured graph or the
caller's loss, `later + (a + b)` is not `(later + a) + b` in floating point. So an input with several uses in a graph is
given to it through a node that has as many edges to the input as there are uses, and hands each edge its own share.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lowtide.device.engine_passes import number_of_engine_pass
from lowtide.errors import BackwardError

_FURTHER = "_lowtide_further"  # on the first contribution to an input: all others, by the input's number
_LEAF = "_lowtide_of"
_ALONE = "_lowtide_alone"  # on a sum that other contributions must not be added to: the input's number
SHARED = (
    "the model uses a parameter several times in one call, and other code, a second call or a penalty on the weights, "
    "uses it before the same backward: lowtide adds up its gradient call by call, plain PyTorch use by use, which "
    "rounds otherwise. Run a backward after each, give the model one batch made of both, or train with "
    'numerics="reassociated".'
)
_ALIASES: dict[int, weakref.ref[torch.Tensor]] = {}  # by identity


class _UseByUse(torch.autograd.Function):
    """Passes a tensor on, and gives each of its edges back one contribution to the tensor's gradient."""

    @staticmethod
    def forward(ctx: Any, number: int, *same: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.number, ctx.edges = number, len(same)
        return same[0].detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        (first,) = gradients
        nothing = (None,) * ctx.edges
        if first is None:
            return (None, *nothing)
        waiting = getattr(first, _FURTHER, {})
        if ctx.number not in waiting:
            raise BackwardError(
                "a gradient inside lowtide's backward was replaced: a captured part of the model returns a "
                "view of a tensor that it was given and uses, or there are hooks of all autograd nodes. What each use "
                "contributes cannot be added up in eager's order. Return a copy of that tensor (.clone()), take such "
                'hooks away, or train with numerics="reassociated".'
            )
        if ctx.number in getattr(first, _ALONE, ()):
            _watch(ctx.next_functions[0][0], first)
        return (None, first, *waiting.pop(ctx.number), *nothing)[: ctx.edges + 1]


def _watch(leaf: Any, gradient: torch.Tensor) -> None:
    """Has the engine look, before anything is done with a parameter's gradient, whether that is this one alone.

    Arguments:
        leaf: the parameter's node.
        gradient: is not held, so that the parameter can take its bytes.
    """
    variable: torch.Tensor | None = getattr(leaf, "variable", None)
    if variable is None:  # not a parameter, whatever else it is
        return
    mine, turn = (gradient.data_ptr(), gradient._version), number_of_engine_pass()

    def look(whole: torch.Tensor) -> None:
        handle.remove()
        if turn == number_of_engine_pass() and (whole.data_ptr(), whole._version) != mine:
            raise BackwardError(SHARED)

    handle = variable.register_hook(look)  # type: ignore[no-untyped-call]
    hooks: Any = variable._backward_hooks
    for key in [k for k in hooks if k != handle.id]:  # before the user's own, which may change it
        hooks[key] = hooks.pop(key)


def hand_over(number: int, contributions: Sequence[torch.Tensor], *, alone: bool = False) -> torch.Tensor | None:
    """What a captured backward returns as the gradient of an input with several uses.

    Arguments:
        number: of the input.
        contributions: those that there are, in the order in which they are to be added up.
        alone: whether anything that others contribute to a parameter's gradient is an error.
    """
    if not contributions:
        return None
    first, *further = contributions
    waiting: dict[int, list[torch.Tensor]] = getattr(first, _FURTHER, {})
    waiting[number] = further
    setattr(first, _FURTHER, waiting)
    if alone:
        setattr(first, _ALONE, {*getattr(first, _ALONE, ()), number})
    return first


def in_at_most(count: int, number: int, first: torch.Tensor | None) -> list[torch.Tensor]:
    """The contributions that were handed over, at most so many.

    Arguments:
        number: of the input.
        first: what the backward returned.

    Returns: the earliest ones added up, in the order in which autograd's engine would add them, and the others.
    """
    if first is None:
        return []
    further = getattr(first, _FURTHER, {}).pop(number, [])
    while len(further) >= count:
        first = first + further.pop(0)
    return [first, *further]


def use_by_use(call: Callable[..., Any], uses: Mapping[int, int]) -> Callable[..., Any]:
    """A captured graph's call, in which the gradient of an input with several uses is handed over share by share.

    Arguments:
        uses: how many, by the number of the input.
    """

    def divided(*arguments: Any) -> Any:
        if not torch.is_grad_enabled():
            return call(*arguments)
        given = list(arguments)
        for number, count in uses.items():
            if given[number].requires_grad:
                given[number] = _alias(given[number], number, count)
        return call(*given)

    return divided


def _alias(tensor: torch.Tensor, number: int, count: int) -> torch.Tensor:
    alias: torch.Tensor = _UseByUse.apply(number, *(tensor for _ in range(count)))  # type: ignore[no-untyped-call]
    setattr(alias, _LEAF, weakref.ref(tensor))
    key = id(alias)
    _ALIASES[key] = weakref.ref(alias, lambda _: _ALIASES.pop(key, None))
    return alias


def behind(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a captured graph's argument stands for: itself, unless its gradient is handed over in shares."""
    reference = getattr(tensor, _LEAF, None)
    found = None if reference is None else reference()
    return tensor if found is None else found


def aliases_of(storage: torch.UntypedStorage) -> int:
    """How many tensors over a storage were made here, for graphs that run or whose backward is still to come."""
    alive = (reference() for reference in list(_ALIASES.values()))
    return sum(1 for t in alive if t is not None and t.untyped_storage()._cdata == storage._cdata)


def is_accumulation(meta: Mapping[str, Any]) -> bool:
    """Tells from a traced node's meta whether autograd's engine made it, to add one contribution to others."""
    return bool(meta.get("is_gradient_acc", False))
