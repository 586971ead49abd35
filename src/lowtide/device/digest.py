"""Tensors compared by their bits: a short digest of each, so that two steps need not live at the same time."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import torch

from lowtide.device.arena import nothing_engaged
from lowtide.device.dispatch_modes import no_modes

_SIZE_B = 16


def content_digest(tensor: torch.Tensor) -> str:
    """A digest of dtype and bits of a tensor's elements, in the order of its dimensions; not of how they lie in memory.

    Arguments:
        tensor: on any device, of any layout. It is not changed, and nothing is left allocated. O(bytes).
    """
    found = hashlib.blake2b(digest_size=_SIZE_B)
    with torch.no_grad(), no_modes(), nothing_engaged():
        for part in _parts(tensor.detach()):
            found.update(str(part.dtype).encode())
            _add(found, part)
    return found.hexdigest()


def digest(tensor: torch.Tensor) -> str:
    """A digest of everything that makes two tensors the same: bits, dtype, shape, and order in memory. O(bytes)."""
    facts = f"{tensor.layout} {tuple(tensor.shape)} {_order(tensor)}"
    return f"{facts} {content_digest(tensor)}"


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of the dimensions in which a step leads anywhere."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that a tensor is made of: itself, or those of a sparse one or of a subclass."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _parts(getattr(tensor, name))]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return [tensor if tensor.layout is torch.strided else tensor.to_dense()]


def _add(found: Any, tensor: torch.Tensor) -> None:
    """Adds a dense tensor's bytes, without a copy where they lie in order in the processor's memory."""
    flat = tensor.resolve_conj().resolve_neg().cpu().contiguous()
    size_B = flat.numel() * flat.element_size()
    if size_B:
        found.update((ctypes.c_char * size_B).from_address(flat.data_ptr()))
