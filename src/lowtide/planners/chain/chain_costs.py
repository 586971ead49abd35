"""What a chain of links takes, counted in slots for the table that plans it (`src/core/chain_table.hpp`).

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lowtide._core import KEEP, ChainTable
from lowtide.planners.chain.link_options import (
    LinkOption,
    handed_on,
    link_options,
    permanent,
    recomputed_stages,
    running_B,
    time_ps,
)
from lowtide.planners.chain.links import Links
from lowtide.planners.reductions.stages import GapNumbers

_BEYOND = 1.4  # slots of the table, as a multiple of those that the budget has: the table may take memory for scarcer
_NOT = -2
_FROM_START = -1


@dataclass(frozen=True)
class ChainCosts:
    """What the table needs to know, in slots.

    Arguments:
        budget_B: for everything; what is always there is taken off it.
        budget_slots: in which the rest is counted.
        hopeful: whether a link's backward is taken to hold of the forward only what it is reading.
        elsewhere: values of other chains of the graph, which are dropped and rematerialised as well.
    """

    links: Links
    budget_B: int
    budget_slots: int
    hopeful: bool = False
    elsewhere: frozenset[int] = frozenset()

    @cached_property
    def always_B(self) -> int:
        """Bytes that are there whatever the chain does."""
        program, half = self.links.program, self.links.half
        return program.core_fixed_B + sum(
            program.size_B[v]
            for v, t in enumerate(program.producer)
            if t < half.turn <= program.last_use[v] and v not in self.links.last_reader and v not in self.elsewhere
        )

    @cached_property
    def unit_B(self) -> float:
        """Bytes of a slot."""
        return max(1.0, (self.budget_B - self.always_B) / self.budget_slots)

    @property
    def slots(self) -> int:
        """Of the table."""
        return int(self.budget_slots * _BEYOND)

    @cached_property
    def options(self) -> tuple[tuple[LinkOption, ...], ...]:
        """Per link what it may save."""
        return link_options(self.links)

    def _sum_B(self, values: Iterable[int]) -> int:
        return sum(self.links.program.size_B[v] for v in values)

    @cached_property
    def held_B(self) -> NDArray[np.int64]:
        """Per link `first` and link `s` the bytes of what crosses in front of s, and not in front of `first`."""
        links, count = self.links, len(self.links.links)
        # A value crosses the cuts in front of links from `begin` through `end`.
        both = np.zeros((count + 1, count + 1), dtype=np.int64)
        for v, end in links.last_reader.items():
            begin = links.link_of[links.program.producer[v]] + 1
            if begin <= end:
                size_B = links.program.size_B[v]
                both[begin, begin] += size_B
                both[begin, end + 1] -= size_B
                both[end + 1, begin] -= size_B
                both[end + 1, end + 1] += size_B
        both = both.cumsum(axis=0).cumsum(axis=1)[:count, :count]
        held: NDArray[np.int64] = np.diag(both)[None, :] - both
        return held

    @cached_property
    def gradients_B(self) -> list[int]:
        """Per stage from the turn on the bytes that earlier ones of those brought and that are still needed."""
        program, turn = self.links.program, self.links.half.turn
        steps_B = [0] * (len(program.stages) + 2)
        for v, t in enumerate(program.producer):
            if t >= turn and program.last_use[v] > t:
                steps_B[t + 1] += program.size_B[v]
                steps_B[program.last_use[v] + 1] -= program.size_B[v]
        return list(itertools.accumulate(steps_B))[turn : len(program.stages)]

    @cached_property
    def behind_B(self) -> list[int]:
        """Per link what the backward of the links behind it holds when its own begins; none in front of the turn."""
        turn = self.links.half.turn
        behind = [self.gradients_B[t - turn] for t in self.links.turn_of]
        return [*behind[:-1], 0]

    @cached_property
    def backward_B(self) -> list[int]:
        """Per link the bytes that its backward takes, gradients included, when all that it reads of the link is there.

        What crosses in front of the link counts elsewhere for as long as the backward lasts; what of it is used up
        earlier is taken off here.
        """
        links, program, turn = self.links, self.links.program, self.links.half.turn
        most_B = [0] * len(links.links)
        given = [(), *links.crossing]
        segments = program.graph.segments
        part = segments[program.stages[turn].segment].part
        for place, k in enumerate(links.backward_of):
            t = turn + place
            if segments[program.stages[t].segment].part != part:
                continue
            reads = program.read_ids[t]
            rest_B = self._sum_B(
                v for v in links.later[k] if (v in reads if self.hopeful else program.last_use[v] >= t)
            )
            over_B = self._sum_B(v for v in given[k] if (v not in reads if self.hopeful else program.last_use[v] < t))
            most_B[k] = max(most_B[k], self.gradients_B[place] + rest_B - over_B + program.stages[t].trace_B)
        return most_B

    def _reversing_B(self, link: int, saved: Collection[int], handed: Collection[int]) -> tuple[int, int]:
        """Bytes and time of a link's backward, where some of it was saved and some of what it hands on is there."""
        links = self.links
        rest = [v for v in links.later[link] if v not in saved]
        there = permanent(links, link).union(saved, handed)
        again = recomputed_stages(links, link, there, rest)
        begins_B = self.gradients_B[links.turn_of[link] - links.half.turn] + self._sum_B(saved)
        again_B = begins_B + running_B(links, again, rest) if again else 0
        return max(again_B, self.backward_B[link]), time_ps(links, again)

    def table(self) -> ChainTable:
        """Fills the table."""
        links, held_B, count = self.links, self.held_B, len(self.links.links)
        begin, saved_B, running, reversing, rest_ps = [0], list[int](), list[int](), list[int](), list[int]()
        alone = [self._reversing_B(k, (), ()) for k in range(count)]
        onward = [handed_on(links, k) for k in range(count)]
        for k, options in enumerate(self.options):
            crosses_B = int(held_B[k, k + 1]) if k + 1 < count else 0
            for option in options:
                saved_B.append(crosses_B + self._sum_B(option.saved))
                running.append(running_B(links, links.links[k], option.saved | onward[k]))
                reversing.append(self._reversing_B(k, option.saved, onward[k])[0])
                rest_ps.append(option.rest_ps)
            begin.append(len(saved_B))
        return ChainTable(
            [time_ps(links, link) for link in links.links],
            [ps for _, ps in alone],
            self._slots(running_B(links, link, onward[k]) for k, link in enumerate(links.links)),
            self._slots(size_B for size_B, _ in alone),
            self._slots(self.behind_B),
            np.ceil(held_B / self.unit_B).astype(np.int64).ravel().tolist(),
            begin,
            self._slots(saved_B),
            self._slots(running),
            self._slots(reversing),
            rest_ps,
            self.slots,
        )

    def _slots(self, sizes_B: Iterable[int]) -> list[int]:
        return [int(-(-size_B // self.unit_B)) for size_B in sizes_B]

    def retention(self, table: ChainTable, slots: int) -> GapNumbers:
        """Writes down the plan for a number of slots. O(graph)."""
        links = self.links
        option, saved_from, crossing_from = table.decode(slots)
        when: dict[int, int] = {}
        for k in range(len(links.links)):
            turn = links.turn_of[k]
            when.update(dict.fromkeys(links.inner[k], turn))
            if option[k] != _NOT:
                since = self._since(saved_from[k])
                when.update(dict.fromkeys(self.options[k][option[k]].saved, since))
        for v, last in links.last_reader.items():
            origin = links.link_of[links.program.producer[v]]
            if last > origin:
                crossing = [self._since(m) for m in crossing_from[origin:last] if m != _NOT]
                when[v] = min(crossing, default=links.turn_of[origin])
        return links.retention(when)

    def _since(self, link: int) -> int:
        return KEEP if link == _FROM_START else self.links.turn_of[link]
