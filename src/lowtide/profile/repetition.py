"""Does an operator give the same bits from equal inputs? Its runs are compared, element by element.

torch documents few of those that do not, and on a GPU which ones they are depends on sizes and settings: sums by
atomic additions, in backwards of indexing, of interpolation, of some attention kernels and convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lowtide.device import generator
from lowtide.device.calls import resolve
from lowtide.device.operators import overload_of, overwrites
from lowtide.profile.signature import Signature

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_UNDEFINED = ("aten.empty", "aten.new_empty", "aten._empty_affine", "prims.empty", "aten.resize")


class Repetition:
    """The runs of one operator on equal inputs.

    Arguments:
        signature: what is run.
        tensors: its inputs; what it overwrites of them is put back by `again`.
    """

    def __init__(self, signature: Signature, tensors: Sequence[torch.Tensor]) -> None:
        target = resolve(signature.op)
        self._device = signature.device
        overload = overload_of(target)
        self._tensors = tensors if overload is not None and overwrites(overload) else ()
        self._contents = [t.clone() for t in self._tensors]
        is_random = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
        self._state = generator.save(self._device) if is_random else None
        self._is_defined = not signature.op.startswith(_UNDEFINED)
        self._first: list[torch.Tensor] = []
        self.holds = True
        """Whether every run so far gave what the first gave."""

    def again(self) -> None:
        """Puts inputs and generator back before another run."""
        for tensor, content in zip(self._tensors, self._contents, strict=True):
            tensor.copy_(content)
        if self._state is not None:
            generator.restore(self._device, self._state)

    def ran(self, result: Any) -> None:
        """Takes note of what a run gave."""
        if not self._is_defined:
            return
        found = [t for t in _tensors_in(result) if t.layout is torch.strided and t.numel()]
        if not self._first:
            self._first = [t.clone() for t in found] if self._contents else found
        elif self.holds:
            self.holds = len(found) == len(self._first) and all(map(_same_bits, self._first, found))

    def end(self) -> bool:
        """Frees what is held for comparisons; returns whether all runs gave the same bits."""
        self._first, self._contents, self._tensors = [], [], ()
        return self.holds


def _tensors_in(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, tuple | list):
        return [tensor for item in result for tensor in _tensors_in(item)]
    return []


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_quantized:
        return bool(torch.equal(one, other))
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    word = _WORDS[one.element_size()]
    return bool(torch.equal(one.view(word), other.view(word)))
