"""Strides as an order of dimensions, which says the same of a tensor whatever its sizes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


def order_of(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Dimensions from the one with the largest stride to the one with the smallest.

    Dimensions of size 1 have their place too: by their strides kernels tell whether channels come last.
    """
    return tuple(sorted(range(len(shape)), key=lambda d: (-strides[d], shape[d] == 1, d)))


def dense_strides(shape: Sequence[Any], order: Sequence[int], expanded: Collection[int] = ()) -> tuple[Any, ...]:
    """Strides without holes, in elements.

    Arguments:
        shape: sizes, which may be symbolic.
        order: as `order_of` gives it.
        expanded: dimensions along which one element is read again and again: their stride is 0.
    """
    strides: list[Any] = [0] * len(shape)
    step: Any = 1
    for dimension in reversed(order):
        if dimension not in expanded:
            strides[dimension] = step
            step = step * shape[dimension]
    return tuple(strides)


def hint_of(number: Any) -> int | None:
    """A size as a number, or what it was when it was traced; None where it is known only when the model runs."""
    found = number if isinstance(number, int) else getattr(getattr(number, "node", None), "hint", None)
    return None if found is None else int(found)
