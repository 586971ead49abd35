"""Which persistent values are device-resident and which host-resident, to be fetched where they are read.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from lowtide.errors import PlanError
from lowtide.ir.check_graph import value_name
from lowtide.ir.graph import Graph
from lowtide.ir.schedule import DEVICE, HOST


def movable_values(graph: Graph) -> tuple[int, ...]:
    """Persistent values that may be host-resident. O(values)."""
    return tuple(v.id for v in graph.values if v.persistent and v.movable)


def hosted_values(graph: Graph) -> tuple[int, ...]:
    """Persistent values that are host-resident. O(values)."""
    return tuple(v.id for v in graph.values if v.persistent and v.memory == HOST)


def housed(graph: Graph, hosted: Collection[int]) -> Graph:
    """The same graph in which exactly these persistent values, and what replaces them, are host-resident.

    Arguments:
        hosted: ids of movable values.

    Returns: ids are as before, so the placement can be chosen anew at any time. O(values).

    Raises:
        PlanError: if one of them is not movable.
    """
    away = set(hosted)
    if stray := away.difference(movable_values(graph)):
        names = ", ".join(value_name(graph, v) for v in sorted(stray)[:4])
        raise PlanError(f"{names}: only movable values can be host-resident")
    values = tuple(
        replace(v, memory=HOST if (v.id if v.persistent else v.replaces) in away else DEVICE)
        if v.movable or v.replaces is not None
        else v
        for v in graph.values
    )
    return replace(graph, values=values)
