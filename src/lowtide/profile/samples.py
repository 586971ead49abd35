"""Tensors to try an operator on: fresh, of a given geometry, with contents that every operator accepts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lowtide.ir.geometry import Geometry
from lowtide.profile.indices import index_bounds
from lowtide.profile.signature import Signature, as_strided

_SEED = 20160617
_BLOCK = 1 << 16  # elements that are really random; longer contents repeat them
_INTEGERS = frozenset({"uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"})


def samples(signature: Signature, *, integer: int = 0, mask: bool | None = None) -> list[torch.Tensor]:
    """Makes one tensor per read of a signature.

    Floats are uniform in [0.05, 1): no operator meets a zero divisor or the logarithm of a negative number. Indices
    are random and valid. The global generators are not used.

    Arguments:
        signature: whose reads.
        integer: content of integers that are no indices.
        mask: content of bools; random when None.
    """
    storages_B = signature.storages_B or (0,) * len(signature.reads)
    bounds = index_bounds(signature.op, signature.args, signature.reads)
    generators = {device: _generator(device) for device in {g.device for g in signature.reads}}
    return [
        _sample(geometry, storage_B, generators[geometry.device], bounds.get(i), integer, mask)
        for i, (geometry, storage_B) in enumerate(zip(signature.reads, storages_B, strict=True))
    ]


def content(geometry: Geometry, readers: Sequence[tuple[Signature, int]], *, seed: int, positive: bool) -> torch.Tensor:
    """Makes one tensor to compare implementations on.

    Floats are normal deviates, one in sixteen of them zero; integers that no reader takes for indices are 0 or 1.

    Arguments:
        readers: calls that read it, and which of their reads it is.
        seed: other tensors have other contents.
        positive: whether floats are uniform in [0.05, 1) instead.
    """
    dtype = getattr(torch, geometry.dtype)
    found = [index_bounds(s.op, s.args, s.reads).get(read) for s, read in readers]
    bound = min((b for b in found if b is not None), default=2)
    generator = torch.Generator(geometry.device).manual_seed(_SEED + seed)
    elements = geometry.extent_B // dtype.itemsize
    storage = torch.empty(elements, dtype=dtype, device=geometry.device)
    if positive or not dtype.is_floating_point:
        block = _block(min(elements, _BLOCK), geometry, generator, bound)
    else:
        block = torch.randn(min(elements, _BLOCK), generator=generator, device=geometry.device)
        block = torch.where(torch.rand(block.shape, generator=generator, device=geometry.device) < 1 / 16, 0.0, block)
    _repeat(storage, block.to(dtype))
    return as_strided(storage, geometry)


def _generator(device: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(_SEED)


def _sample(
    geometry: Geometry, storage_B: int, generator: torch.Generator, bound: int | None, integer: int, mask: bool | None
) -> torch.Tensor:
    dtype = getattr(torch, geometry.dtype)
    elements = max(geometry.extent_B, storage_B) // dtype.itemsize
    storage = torch.empty(elements, dtype=dtype, device=geometry.device)
    if geometry.dtype in _INTEGERS and bound is None:
        storage.fill_(integer)
    elif geometry.dtype == "bool" and mask is not None:
        storage.fill_(mask)
    else:
        _repeat(storage, _block(min(elements, _BLOCK), geometry, generator, bound))
    return as_strided(storage, geometry)


def _block(elements: int, geometry: Geometry, generator: torch.Generator, bound: int | None) -> torch.Tensor:
    dtype, device = getattr(torch, geometry.dtype), geometry.device
    if bound is not None and geometry.dtype in _INTEGERS:
        return torch.randint(bound, (elements,), generator=generator, device=device).to(dtype)
    if geometry.dtype == "bool":
        return torch.randint(2, (elements,), generator=generator, device=device).to(dtype)
    return torch.empty(elements, device=device, dtype=torch.float32).uniform_(0.05, 1.0, generator=generator).to(dtype)


def _repeat(storage: torch.Tensor, block: torch.Tensor) -> None:
    """Fills a storage with copies of a block, at the speed of a copy."""
    if block.numel() == 0:
        return
    whole = storage.numel() // block.numel() * block.numel()
    storage[:whole].view(-1, block.numel()).copy_(block.expand(whole // block.numel(), -1))
    storage[whole:].copy_(block[: storage.numel() - whole])
