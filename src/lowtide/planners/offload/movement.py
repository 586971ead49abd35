"""What a plan may offload to the host and prefetch, what every plan has to copy, and how long copies take.

A value that a plan fetches is sent once, when it is made. A host-resident persistent value is never
sent: it comes by fetch alone. What an update on the device makes of such a value is sent there, and is dropped from the
device at once. What a run on the host reads is sent there when it is made.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lowtide.ir.graph import Graph, Value
from lowtide.ir.machine import Link, Machine
from lowtide.ir.schedule import DEVICE, HOST, HOST_ENGINE
from lowtide.planners.reductions.program import updated_values

LEAST_B = 1 << 16  # smaller values are not worth a copy of their own


@dataclass(frozen=True, slots=True)
class Movement:
    """What is offloaded; values and recipes by their ids in the graph.

    Arguments:
        fetchable: values that may come by fetch.
        hosted: those of them that are host-resident.
        returning: what updates on the device make for host-resident values.
        host_runs: recipes of the program on the host's engine.
        lent: values that come about on the device and are read by them.
    """

    fetchable: frozenset[int] = frozenset()
    hosted: frozenset[int] = frozenset()
    returning: frozenset[int] = frozenset()
    host_runs: frozenset[int] = frozenset()
    lent: frozenset[int] = frozenset()

    def sent_B(self, graph: Graph) -> int:
        """Bytes that every plan sends."""
        return sum(graph.values[v].size_B for v in self.returning | self.lent)

    def fetch_B(self, value: Value) -> int:
        """Bytes that a fetch of the value copies; -1 where it has none."""
        return value.size_B if value.id in self.fetchable else -1

    def send_B(self, value: Value) -> int:
        """Bytes that have to be sent before its first fetch, and are not sent anyway."""
        is_sent = value.id in self.fetchable and value.id not in self.hosted and value.id not in self.lent
        return value.size_B if is_sent else 0


NOTHING_MOVES = Movement()


def fetchable_values(graph: Graph, least_B: int = LEAST_B) -> frozenset[int]:
    """Values that may be sent to the host and fetched back: all but persistent ones, host-resident ones, and small
    ones.

    What the caller overwrites, or frees at once, is left out: nothing would wait for its copy. O(graph).
    """
    kept = graph.handed | updated_values(graph, graph.program)
    return frozenset(
        v.id
        for v in graph.values
        if v.size_B >= max(1, least_B)
        and not (v.persistent or v.replaces is not None or v.id in kept or v.readable_through is not None)
        and (v.leaves is None or (v.held and _leaves_its_own_part(graph, v)))
    )


def _leaves_its_own_part(graph: Graph, value: Value) -> bool:
    """Whether it could be fetched where it is handed over: a fetch touches it in a segment of its own part."""
    assert value.leaves is not None
    segments = [graph.recipes[r].segment for r in graph.producers[value.id]]
    segments += [] if value.arrives is None else [value.arrives]
    part = graph.segments[value.leaves].part
    return any(graph.segments[s].part == part for s in segments)


def movement(graph: Graph, program: Sequence[int], movable: Collection[int]) -> Movement:
    """Works out what is offloaded.

    Arguments:
        program: recipes that run.
        movable: values that are not persistent and may be sent and fetched.

    O(graph).
    """
    hosted = frozenset(v.id for v in graph.values if v.persistent and v.memory == HOST)
    host_runs = frozenset(r for r in program if graph.recipes[r].engine == HOST_ENGINE)
    made_there = {v for r in host_runs for v in graph.recipes[r].outputs}
    returning = (v.id for v in graph.values if v.memory == HOST and v.leaves is not None and not v.persistent)
    read_there = {v for r in host_runs for v in graph.recipes[r].read_values}
    return Movement(
        (fetchable_values(graph, 1) & frozenset(movable)) | hosted,
        hosted,
        frozenset(returning) - made_there,
        host_runs,
        frozenset(read_there) - made_there - hosted,
    )


def refuses_movement(graph: Graph, program: Sequence[int]) -> str | None:
    """Says which recipe reads or makes something in the wrong memory, or None. O(graph)."""
    away: set[int] = set()  # what is on the host and was never on the device, or has left it for good
    for recipe in (graph.recipes[r] for r in program):
        on_host = recipe.engine == HOST_ENGINE
        if not on_host and (gone := away.intersection(recipe.read_values)):
            return f"recipe {recipe.id} ({recipe.op}) reads {graph.values[min(gone)].name}, which has gone to the host"
        for value in (graph.values[v] for v in recipe.outputs):
            if on_host and value.leaves is not None and value.memory != HOST:
                return f"recipe {recipe.id} ({recipe.op}) makes {value.name} on the host, and it leaves on the device"
            if on_host or value.memory == HOST:
                away.add(value.id)
    return None


def refuses_to_move(graph: Graph) -> str | None:
    """Says what every plan has to copy, or None: of use where nothing can be. O(graph)."""
    for value in graph.values:
        if value.persistent and value.memory == HOST:
            return f"{value.name} is host-resident; this planner offloads nothing"
    for recipe in (graph.recipes[r] for r in graph.program):
        if recipe.engine == HOST_ENGINE:
            return f"recipe {recipe.id} ({recipe.op}) runs on the host; this planner offloads nothing"
    return None


@dataclass(frozen=True)
class Rates:
    """How long copies take: seconds per byte and once, to the host and from it."""

    to_s_per_B: float
    to_s: float
    from_s_per_B: float
    from_s: float

    @staticmethod
    def of(machine: Machine) -> Rates:
        """The links between a machine's device and its host. Without one, copies in that direction take no time."""
        device = machine.memories[0].name if machine.memories else DEVICE
        links = {(link.source, link.target): link for link in machine.links}
        to, back = links.get((device, HOST)), links.get((HOST, device))
        return Rates(*_rate(to), *_rate(back))

    def send_s(self, size_B: int) -> float:
        return self.to_s + size_B * self.to_s_per_B

    def fetch_s(self, size_B: int) -> float:
        return self.from_s + size_B * self.from_s_per_B


def _rate(link: Link | None) -> tuple[float, float]:
    return (0.0, 0.0) if link is None else (1.0 / link.rate_Bps, link.latency_s)
