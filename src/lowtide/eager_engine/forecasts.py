"""What an operator is expected to cost and to ask for: what it did when it ran last on like shapes.

Like are calls of one operator whose tensors have the same sizes and widths, and whose lists of numbers are the same;
where none was seen yet, any call of that operator will do. `_shim/eager/forecasts.hpp` does the same.

Units: `_B` bytes, `_ns` nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from lowtide.eager_engine.closure import Seen, Several

Likeness = tuple[Any, ...]
"""Equal for like calls; the name of the operator comes first."""

_MOST = 1 << 16  # kinds of calls that are remembered


class Forecast(msgspec.Struct, frozen=True):
    """What is expected of a call.

    Arguments:
        cost_ns: modelled.
        size_B: of its largest new result; 0: it makes none.
    """

    cost_ns: int
    size_B: int


class Forecasts:
    """What is known of calls so far."""

    def __init__(self) -> None:
        self._of: dict[Likeness, Forecast] = {}
        self._blocks_B: dict[Likeness, tuple[int, ...]] = {}

    def of(self, likeness: Likeness) -> Forecast | None:
        """What is expected of such a call; None where its operator has not run yet."""
        return self._of.get(likeness) or self._of.get(likeness[:1])

    def blocks_B(self, likeness: Likeness) -> tuple[int, ...]:
        """What such a call has together at most, in the order in which it asks; nothing where none was seen."""
        return self._blocks_B.get(likeness, ())

    def asked(self, likeness: Likeness, blocks_B: Sequence[int]) -> None:
        """A call has asked for results and workspaces."""
        if len(self._blocks_B) >= _MOST:
            self._blocks_B.clear()
        self._blocks_B[likeness] = tuple(blocks_B)

    def learn(self, likeness: Likeness, forecast: Forecast) -> None:
        """A call has run."""
        if len(self._of) >= _MOST:
            self._of.clear()
        self._of[likeness] = self._of[likeness[:1]] = forecast


def likeness(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Likeness:
    """What like calls have in common.

    Arguments:
        args, kwargs: as a closure keeps them.
    """
    return (name, *_facts(args), *_facts(tuple(kwargs.values())))


def _facts(items: tuple[Any, ...]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, Seen):
            yield tuple(item.size), item.dtype.itemsize
        elif isinstance(item, Several):
            if item.items and isinstance(item.items[0], int):
                yield item.items
            else:
                yield from _facts(item.items)
