"""Intercepts accesses to a tensor's bytes that are no operators: numpy, lists, addresses, pickles, printing, storages.

Torch's dispatcher does not see them, nor who holds the lengths of sequences, so an evicted tensor would be touched.
While a context is open, methods of `torch.Tensor` and of `torch.UntypedStorage` that lead past the dispatcher ask for
the bytes first. Every thread calls them; only the context's own is helped, the others meet the storage's guard.

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

from lowtide.device.bucket_buffers import bucket_buffers_made

_LOOKS = ("tolist", "__repr__", "storage", "_typed_storage")
_KEEPS = ("data_ptr", "share_memory_", "__reduce_ex__")
"""What these hand out is an address, or is read later."""
_SHARES = ("numpy", "__dlpack__")
"""Whoever is handed the bytes may write there."""
_STORAGE_LOOKS = ("__getitem__", "tolist", "_write_file", "resize_")
_STORAGE_KEEPS = ("data_ptr", "_share_filename_cpu_", "_share_fd_cpu_")
_STORAGE_WRITES = ("__setitem__", "fill_", "copy_", "byteswap")
"""These write over what their first argument holds, there and then; `copy_` reads the second."""

_LENGTHS = (
    *((torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu", "_pad_packed_sequence")),
    (torch, "ctc_loss"),
)
"""Made of operators, they hold the address of lengths among their arguments while those run. So does the backward of
packing, of those that packing made."""

Bytes = Tensor | torch.UntypedStorage
Reach = Callable[[Bytes, bool], None]
Share = Callable[[Bytes], None]
Unseen = Callable[[], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def watched(reach: Reach, share: Share, write: Share, unseen: Unseen) -> Iterator[None]:
    """Inside, functions that reach a tensor's bytes past the dispatcher ask for them first, in this thread.

    Arguments:
        reach: is called with the tensor, and whether its address is handed out.
        share: is called with a tensor whose bytes others may write to from now on.
        write: is called with what is about to be written, once.
        unseen: what is allocated inside it is never evicted.
    """
    owner = threading.get_ident()
    set_state, to_dlpack = torch.set_rng_state, torch.to_dlpack  # type: ignore[attr-defined]
    of_lengths = [(module, name, getattr(module, name)) for module, name in _LENGTHS]
    pack = torch._VF._pack_padded_sequence

    def look(tensor: Bytes) -> None:
        reach(tensor, False)

    def keep(tensor: Bytes) -> None:
        reach(tensor, True)

    def keep_lengths(tensor: Bytes) -> None:
        if isinstance(tensor, Tensor) and not (tensor.is_floating_point() or tensor.is_complex()):
            reach(tensor, True)

    @functools.wraps(pack)
    def packed(*args: Any, **kwargs: Any) -> Any:
        results = pack(*args, **kwargs)
        if threading.get_ident() == owner:
            keep_lengths(results[1])
        return results

    asked: list[tuple[type, tuple[str, ...], Share]]
    asked = [(Tensor, _LOOKS, look), (Tensor, _KEEPS, keep), (Tensor, _SHARES, share)]
    storage = torch.UntypedStorage
    asked += [(storage, _STORAGE_LOOKS, look), (storage, _STORAGE_KEEPS, keep), (storage, _STORAGE_WRITES, write)]
    methods = [(kind, name, vars(kind).get(name), ask) for kind, names, ask in asked for name in names]
    try:
        for kind, name, _, ask in methods:
            setattr(kind, name, _asking(getattr(kind, name), ask, owner))
        storage.copy_ = _asking(storage.copy_, look, owner, most=2)  # type: ignore[method-assign]
        torch.set_rng_state = torch.random.set_rng_state = _asking(set_state, look, owner)
        for module in (torch, torch.utils.dlpack):
            module.to_dlpack = _asking(to_dlpack, share, owner)  # type: ignore[attr-defined]
        for module, name, function in of_lengths:
            setattr(module, name, _asking(function, keep_lengths, owner, most=None))
        torch._VF._pack_padded_sequence = packed
        with bucket_buffers_made(_within(unseen, owner)):
            yield
    finally:
        torch._VF._pack_padded_sequence = pack
        for module, name, function in of_lengths:
            setattr(module, name, function)
        torch.set_rng_state = torch.random.set_rng_state = set_state
        for module in (torch, torch.utils.dlpack):
            module.to_dlpack = to_dlpack  # type: ignore[attr-defined]
        for kind, name, method, _ in methods:
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)


def _within(unseen: Unseen, owner: int) -> Unseen:
    """That context in the thread that owns it, and none in others."""
    return lambda: unseen() if threading.get_ident() == owner else contextlib.nullcontext()


def _asking(function: Callable[..., Any], ask: Share, owner: int, most: int | None = 1) -> Callable[..., Any]:
    """The function, which asks for the tensors among its first arguments.

    Arguments:
        most: of how many; None: of all.
    """

    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == owner:
            for argument in (*args, *kwargs.values())[:most]:
                if isinstance(argument, Bytes):
                    ask(argument)
        return function(*args, **kwargs)

    return asked
