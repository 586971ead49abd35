"""A forward as a chain of links between its articulation points: what methods for chains plan.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lowtide.planners.chain.forward import Linked, forwards, retention_of
from lowtide.planners.reductions.stages import GapNumbers, StageProgram


@dataclass(frozen=True)
class Chain(Linked):
    """A forward cut behind each articulation point of the trunk.

    Of what the trunk makes a link reads the last stage of the link before it, and its own; what is outside the trunk
    belongs to the link in which it runs.
    """

    @cached_property
    def crossing(self) -> tuple[frozenset[int], ...]:
        """Per link the values that the next one reads."""
        crossing: list[set[int]] = [set() for _ in self.links]
        producer = self.program.producer
        for t, k in self.link_of.items():
            for v in self.program.read_ids[t]:
                origin = self.link_of.get(producer[v], k)
                if origin != k:
                    crossing[origin].add(v)
        return tuple(frozenset(c) for c in crossing)

    def inner(self, link: int) -> tuple[int, ...]:
        """What a link makes but what crosses to the next one."""
        return tuple(v for t in self.links[link] for v in self.half.outputs[t] if v not in self.crossing[link])

    @cached_property
    def need(self) -> tuple[int, ...]:
        """Per link the first stage behind the turn that needs it to run, or an earlier link. O(reads)."""
        program, last = self.program, len(self.program.stages) - 1
        need = [last] * len(self.links)
        for t in range(last, self.half.turn - 1, -1):
            for v in program.read_ids[t]:
                link = self.link_of.get(program.producer[v])
                if link is not None:
                    # Who reads what crosses goes backward through the next link.
                    need[min(link + (v in self.crossing[link]), len(need) - 1)] = t
        return tuple(min(need[: k + 1]) for k in range(len(need)))

    def retention(self, inner: Sequence[int], crossing: Sequence[int]) -> GapNumbers:
        """Writes down what becomes of each link's values between forward and backward.

        Arguments:
            inner: per link, of what only it needs: as `when` of `retention_of`.
            crossing: per link, of what the next one reads.
        """
        when: dict[int, int] = {}
        for k in range(len(self.links)):
            when.update(dict.fromkeys(self.inner(k), inner[k]))
            when.update(dict.fromkeys(self.crossing[k], crossing[k]))
        return retention_of((self.half,), when, self.program)


def chain_of(program: StageProgram) -> Chain:
    """Cuts the forward of a program with one part. O(edges)."""
    (half,) = forwards(program)
    points = set(half.articulation_points)
    links: list[tuple[int, ...]] = []
    link: list[int] = []
    for t in half.ancestry:
        link.append(t)
        if t in points:
            links.append(tuple(link))
            link = []
    return Chain(half, tuple(links))


def refuses_chain(program: StageProgram) -> str | None:
    """Says why a program has no chain of two links or more, or None if it has one."""
    parts = {segment.part for segment in program.graph.segments}
    if len(parts) != 1:
        return f"the graph is a bundle of {len(parts)} parts; this planner knows one forward and one backward"
    if len(chain_of(program).links) < 2:
        return "no recipe of the forward lies on every path through it, so the forward is not a chain of two links"
    return None
