"""Ways to a tensor's bytes that are no operators: numpy, lists, addresses, pickles, printing, lengths of sequences.

Torch's dispatcher does not see them, so an evicted tensor would be touched. While a context is open, methods of
`torch.Tensor` that lead past the dispatcher ask for the bytes first. Every thread calls them; only the context's own is
helped, the others meet the storage's guard.

Units: none.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_LOOKS = ("tolist", "__repr__", "storage", "_typed_storage")
_KEEPS = ("data_ptr", "share_memory_", "__reduce_ex__")
"""What these hand out is an address, or is read later."""
_SHARES = ("numpy", "__dlpack__")
"""Whoever is handed the bytes may write there."""

_LENGTHS = (
    *((torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu", "_pad_packed_sequence")),
    (torch, "ctc_loss"),
)
"""Made of operators, they hold the address of lengths among their arguments while those run. So does the backward of
packing, of those that packing made."""

Reach = Callable[[Tensor, bool], None]
Share = Callable[[Tensor], None]


@contextlib.contextmanager
def watched(reach: Reach, share: Share) -> Iterator[None]:
    """Inside, this thread's ways to a tensor's bytes past the dispatcher ask for them first.

    Arguments:
        reach: is called with the tensor, and whether its address is handed out.
        share: is called with a tensor whose bytes others may write to from now on.
    """
    owner = threading.get_ident()
    own = vars(Tensor)
    before = {name: own.get(name) for name in (*_LOOKS, *_KEEPS, *_SHARES)}
    set_state, to_dlpack = torch.set_rng_state, torch.to_dlpack  # type: ignore[attr-defined]
    of_lengths = [(module, name, getattr(module, name)) for module, name in _LENGTHS]
    pack = torch._VF._pack_padded_sequence

    def look(tensor: Tensor) -> None:
        reach(tensor, False)

    def keep(tensor: Tensor) -> None:
        reach(tensor, True)

    def keep_lengths(tensor: Tensor) -> None:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            reach(tensor, True)

    @functools.wraps(pack)
    def packed(*args: Any, **kwargs: Any) -> Any:
        results = pack(*args, **kwargs)
        if threading.get_ident() == owner:
            keep_lengths(results[1])
        return results

    try:
        for name in before:
            ask = share if name in _SHARES else keep if name in _KEEPS else look
            setattr(Tensor, name, _asking(getattr(Tensor, name), ask, owner))
        torch.set_rng_state = torch.random.set_rng_state = _asking(set_state, look, owner)
        for module in (torch, torch.utils.dlpack):
            module.to_dlpack = _asking(to_dlpack, share, owner)  # type: ignore[attr-defined]
        for module, name, function in of_lengths:
            setattr(module, name, _asking(function, keep_lengths, owner, most=None))
        torch._VF._pack_padded_sequence = packed
        yield
    finally:
        torch._VF._pack_padded_sequence = pack
        for module, name, function in of_lengths:
            setattr(module, name, function)
        torch.set_rng_state = torch.random.set_rng_state = set_state
        for module in (torch, torch.utils.dlpack):
            module.to_dlpack = to_dlpack  # type: ignore[attr-defined]
        for name, method in before.items():
            if method is None:
                delattr(Tensor, name)
            else:
                setattr(Tensor, name, method)


def _asking(function: Callable[..., Any], ask: Share, owner: int, most: int | None = 1) -> Callable[..., Any]:
    """The function, which asks for the tensors among its first arguments.

    Arguments:
        most: of how many; None: of all.
    """

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == owner:
            for argument in (*args, *kwargs.values())[:most]:
                if isinstance(argument, Tensor):
                    ask(argument)
        return function(*args, **kwargs)

    return asked
