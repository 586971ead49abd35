"""Autocast casts a parameter once for all of its uses, until the outermost context is left; a capture has to know when.

Eager keeps what it has cast, so that the gradients of all uses are added up in the lower precision, and their sum is
cast back. While torch traces a graph nothing is kept: each use has a cast of its own, and what flows back is cast first
and added up then, which rounds otherwise.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import operator
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from lowtide.device.dispatch_modes import no_modes
from lowtide.device.engine_passes import nodes_of_engine_pass, number_of_engine_pass
from lowtide.errors import BackwardError

_LOWER = (torch.bfloat16, torch.float16)
_TWICE = (
    "several calls under one autocast context use the same parameter, and one backward goes through them: plain "
    "PyTorch casts it once and adds up its gradient in the lower precision, lowtide adds up the gradients of the "
    "calls, which rounds otherwise. Enter torch.autocast anew for each call, pass it cache_enabled=False, give the "
    'model one batch made of both, or train with numerics="reassociated".'
)

_ELSEWHERE = (
    "code outside the captured graph casts a parameter to a lower precision that the model uses under the same "
    "autocast context, and one backward goes through both: plain PyTorch casts it once and adds up its gradient in the "
    "lower precision, lowtide adds up what is cast back, which rounds otherwise. Let the model do what that code does, "
    'run a backward after each, pass torch.autocast cache_enabled=False, or train with numerics="reassociated".'
)


@dataclass(eq=False)
class AutocastNotes:
    """When autocast forgot what it had cast, while one graph was traced.

    Arguments:
        surrounds: whether the graph's caller is inside an autocast context.
        forgotten: sequence numbers of autograd's at which it forgot.
        switched: sequence numbers from which it kept what it cast, or did not.
    """

    surrounds: bool
    forgotten: list[int] = field(default_factory=list)
    switched: list[tuple[int, bool]] = field(default_factory=list)

    def period_of(self, number: int) -> int:
        """What distinguishes the time in which something was cast; casts of one parameter in it are one."""
        return bisect.bisect_right(self.forgotten, number)

    def keeps_at(self, number: int) -> bool:
        """Whether what is cast at that point is kept."""
        return self.switched[bisect.bisect_right(self.switched, number, key=operator.itemgetter(0)) - 1][1]


@contextlib.contextmanager
def autocast_cache_noted(gm: fx.GraphModule) -> Iterator[AutocastNotes]:
    """Inside, what is traced on this thread tells when autocast keeps and forgets what it casts.

    Arguments:
        gm: what is traced: its own calls of these functions of torch's tell as well.
    """
    from torch._functorch._aot_autograd import collect_metadata_analysis
    from torch.fx.experimental import proxy_tensor

    forget, switch = torch.clear_autocast_cache, torch.set_autocast_cache_enabled
    notes = AutocastNotes(_is_inside_autocast(), switched=[(-1, torch.is_autocast_cache_enabled())])

    def noted_forget() -> None:
        notes.forgotten.append(torch._C._autograd._get_sequence_nr())
        forget()

    def noted_switch(enabled: bool) -> None:
        notes.switched.append((torch._C._autograd._get_sequence_nr(), enabled))
        switch(enabled)

    # Traced tensors are nobody's leaves, of which alone autocast keeps casts: torch need not switch that off as well.
    tracers: list[Any] = [m for m in (proxy_tensor, collect_metadata_analysis) if hasattr(m, "disable_autocast_cache")]
    disabling = [m.disable_autocast_cache for m in tracers]
    for module in tracers:
        module.disable_autocast_cache = contextlib.nullcontext
    torch.clear_autocast_cache, torch.set_autocast_cache_enabled = noted_forget, noted_switch
    own = [(n, plain) for plain in (forget, switch) for n in gm.graph.find_nodes(op="call_function", target=plain)]
    for node, plain in own:
        node.target = noted_forget if plain is forget else noted_switch
    try:
        yield notes
    finally:
        torch.clear_autocast_cache, torch.set_autocast_cache_enabled = forget, switch
        for node, plain in own:
            node.target = plain
        for module, plain in zip(tracers, disabling, strict=True):
            module.disable_autocast_cache = plain


def _is_inside_autocast() -> bool:
    torch.autocast_increment_nesting()
    return bool(torch.autocast_decrement_nesting() > 0)


def is_kept_when_cast(tensor: torch.Tensor) -> bool:
    """Whether autocast keeps the cast of such a tensor."""
    return tensor.dtype is torch.float32 and tensor.requires_grad and tensor.is_leaf and not tensor._is_view()


def is_lower(dtype: torch.dtype) -> bool:
    """Whether autocast may cast to it."""
    return dtype in _LOWER


def period_of_caller(device: torch.device) -> object:
    """What stands for the time in which autocast keeps what the calling code casts; None where it keeps nothing.

    It is the node of autograd of a cast that is kept for that time: the same for as long as autocast keeps it.
    """
    if not (_is_inside_autocast() and torch.is_autocast_enabled(device.type) and torch.is_autocast_cache_enabled()):
        return None
    with no_modes(), torch.enable_grad():
        cast: Any = torch.mm(number := _number_on(device), number).grad_fn
    return None if cast is None else cast.next_functions[0][0]


@functools.cache
def _number_on(device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.ones(1, 1, device=device, requires_grad=True)


@dataclass(eq=False)
class _Pass:
    """The parameters whose gradients have gone through casts in the pass of autograd's engine that runs.

    Arguments:
        outside: those, by identity, that code outside of captured graphs has cast.
    """

    number: int = -1
    outside: frozenset[int] = frozenset()
    seen: dict[int, list[Any]] = field(default_factory=dict)


_PASSES: list[_Pass] = [_Pass()]


def _cast_outside() -> frozenset[int]:
    """The leaves that uncaptured code of the running backward has cast to a lower precision, by identity."""
    casts = (n for n in nodes_of_engine_pass() if n.name().startswith("ToCopyBackward"))
    leaves = (getattr(n.next_functions[0][0], "variable", None) for n in casts if is_lower(n._input_metadata[0].dtype))
    return frozenset(id(leaf) for leaf in leaves if leaf is not None)


def refuse_casts_of_several_calls(parameters: Sequence[torch.Tensor], period: object, call: object) -> None:
    """Notes in a backward which parameters its forward has cast.

    Arguments:
        parameters: all of them.
        period: what stands for the time in which it did, when the forward ran; None where autocast kept nothing.
        call: what tells this forward from another.

    Raises:
        BackwardError: if another forward of this backward has cast one of them in the same period, or code outside
            has, in whichever period.
    """
    if period is None or (number := number_of_engine_pass()) == -1:
        return
    current = _PASSES[0]
    if current.number != number:
        current = _PASSES[0] = _Pass(number, _cast_outside())
    for parameter in parameters:
        if id(parameter) in current.outside:
            raise BackwardError(_ELSEWHERE)
        others = current.seen.setdefault(id(parameter), [])
        if any(p == period and c() is not call for p, c in others):
            raise BackwardError(_TWICE)
        others.append((period, weakref.ref(call)))
