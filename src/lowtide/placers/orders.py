"""Orders in which greedy placing does well, each a sort key over buffers.

Sizes, areas and lifetimes in falling order are folklore of offset assignment (Pisarchyk and Lee, "Efficient memory
management for deep neural net inference", 2020, compare them).
"""

from __future__ import annotations

from collections.abc import Callable

from lowtide.placers.arcs import Arcs, Traits

Key = tuple[int, ...]

ORDERS: dict[str, Callable[[Traits], Key]] = {  # what succeeds most often first
    "size": lambda t: (-t.size, -t.length),
    "crowd, lifetime": lambda t: (-t.crowd, -t.length, -t.size),
    "area": lambda t: (-t.size * t.length, -t.size),
    "wrap, size": lambda t: (not t.wraps, -t.size, -t.length),
    "crowd, size": lambda t: (-t.crowd, -t.size, -t.length),
    "lifetime": lambda t: (-t.length, -t.size),
    "wrap, lifetime": lambda t: (not t.wraps, -t.length, -t.size),
    "start": lambda t: (t.start, -t.length, -t.size),
    "stop": lambda t: (-t.start - t.length, -t.length, -t.size),
}


def order_by(arcs: Arcs, key: Callable[[Traits], Key]) -> list[int]:
    """The buffers in the order of a sort key; equal ones as they are listed."""
    return sorted(range(len(arcs.traits)), key=lambda i: key(arcs.traits[i]))
