"""What an operator costs, for those who choose what to make again. The same in every run, so that what fits fits again.

Units: `_ns` nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from lowtide.dynamic.operators import tensors_in

_BYTES_PER_ns, _LAUNCH_ns = 10, 1000
Shape = tuple[tuple[int, ...], int]


def cost_ns(name: str, arguments: Iterable[Tensor], results: Any) -> int:
    """The modelled cost of an operator.

    Arguments:
        arguments: its tensors.
        results: whatever it returned.
    """
    del name
    shapes = _shapes(arguments) + _shapes(tensors_in((results,)))
    size_B = 0
    for size, item_B in shapes:
        count = 1
        for extent in size:
            count *= extent
        size_B += count * item_B
    return size_B // _BYTES_PER_ns + _LAUNCH_ns


def _shapes(tensors: Iterable[Tensor]) -> tuple[Shape, ...]:
    return tuple((tuple(tensor.shape), tensor.element_size()) for tensor in tensors)
