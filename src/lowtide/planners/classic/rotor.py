"""Rotor's dynamic programme over a chain of links with times and sizes of their own.

J. Herrmann, O. Beaumont, L. Eyraud-Dubois, J. Hermann, A. Joly, A. Shilova, "Optimal checkpointing for heterogeneous
chains: how to train deep neural networks with limited memory", arXiv 1911.13214 (2019). A stretch of links is reversed
by saving everything of its first link and then reversing the rest, or by running some links without saving, keeping
what crosses there, reversing what is behind it and then what is before.

Memory is counted in slots, sizes rounded up. The programme's model of memory is coarse (what a link's backward takes
counts as one sum), so its plans are weighed exactly afterwards: the table holds the best plan for every number of
slots, and the largest number whose plan fits is found by bisection.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from lowtide._core import KEEP
from lowtide.ir.plan import Problem
from lowtide.planners.chain.chain import Chain, chain_of, refuses_chain
from lowtide.planners.chain.forward import AT_ONCE
from lowtide.planners.classic.policy import AbstractPolicyPlanner, attempt
from lowtide.planners.reductions.stages import GapNumbers, refuses_stages, stage_program
from lowtide.planners.search import Search

_SAVE = -1  # the choice to save everything of the first link; else the link behind the split
_NONE = -2


@final
@dataclass(frozen=True)
class Rotor(AbstractPolicyPlanner):
    """The links lie between the forward's articulation points. O(links^3 * slots).

    Arguments:
        slots: in which the bytes of keeping everything are counted.
        most_links: of a chain; longer ones are refused.
    """

    slots: int = 500
    most_links: int = 150
    name: ClassVar[str] = "rotor"

    def refuses(self, problem: Problem) -> str | None:
        """A bundle, a forward with fewer than two articulation points, and too long a chain."""
        if reason := refuses_stages(problem.graph):
            return reason
        program = stage_program(problem.graph)
        if reason := refuses_chain(program):
            return reason
        links = len(chain_of(program).links)
        if links > self.most_links:
            return f"the chain has {links} links; the tables of this planner are for {self.most_links} at most"
        return None

    def attempts(self, search: Search) -> None:
        """FEASIBLE with the best of its table that fits, OPTIMAL where everything fits, else no plan."""
        table = _Table(chain_of(search.program), search, self.slots)
        least, most = table.least, self.slots
        while least is not None and least <= most:
            middle = (least + most) // 2
            state = attempt(search, table.retention(middle))
            if state is not None and state.fits:
                least = middle + 1
            else:
                most = middle - 1


class _Table:
    """The least time of reversing links first to last, both included, for every number of slots.

    Invariant: `time[first, last, m]` is infinite where m slots do not do. `behind[first, last, m]` is the same with m
    less what crosses in front of link first: what is left for it when that is kept.
    """

    def __init__(self, chain: Chain, search: Search, slots: int) -> None:
        self.chain, self.slots = chain, slots
        self.unit_B = max(1, (search.stats["keep_all_peak_B"] - search.program.core_fixed_B) // slots)
        count = len(chain.links)
        self.time = np.full((count, count, slots + 1), np.inf, dtype=np.float32)
        self.behind = np.full((count, count, slots + 1), np.inf, dtype=np.float32)
        self.choice = np.full((count, count, slots + 1), _NONE, dtype=np.int16)
        for length in range(count):
            for first in range(count - length):
                self._fill(first, first + length)
            search.clock.tick()

    def _count(self, bytes_B: int) -> int:
        return int(-(-bytes_B // self.unit_B))

    @cached_property
    def crossing(self) -> list[int]:
        """Slots of what crosses behind each link."""
        size_B = self.chain.program.size_B
        return [self._count(sum(size_B[v] for v in crossing)) for crossing in self.chain.crossing]

    @cached_property
    def later(self) -> list[tuple[int, ...]]:
        """Per link what only it produces and its backward reads."""
        chain, last_use = self.chain, self.chain.program.last_use
        return [tuple(v for v in chain.inner(k) if last_use[v] >= chain.half.turn) for k in range(len(chain.links))]

    @cached_property
    def saved(self) -> list[int]:
        """Slots of what a link's backward reads, and of what crosses behind it."""
        size_B, crossing = self.chain.program.size_B, self.chain.crossing
        return [self._count(sum(size_B[v] for v in (*own, *crossing[k]))) for k, own in enumerate(self.later)]

    @cached_property
    def running(self) -> list[int]:
        """Slots that running a link takes, what it produces included."""
        stages = self.chain.program.stages
        return [self._count(max(stages[t].trace_B for t in link)) for link in self.chain.links]

    @cached_property
    def reversing(self) -> list[int]:
        """Slots that a link's backward takes besides what was saved: its runs, and the gradient that comes in."""
        chain, program = self.chain, self.chain.program
        most_B = [0] * len(chain.links)
        for t in range(chain.half.turn, len(program.stages)):
            origins = [chain.link_of.get(program.producer[v]) for v in program.read_ids[t]]
            link = max((k for k in origins if k is not None), default=None)
            if link is not None and program.stages[t].recipe >= 0:
                most_B[link] = max(most_B[link], program.stages[t].trace_B)
        return [self._count(most_B[k]) + self.crossing[k] for k in range(len(most_B))]

    @cached_property
    def run_ps(self) -> list[int]:
        """Time of recomputing each link."""
        return [sum(self.chain.program.stages[t].recompute_ps for t in link) for link in self.chain.links]

    @cached_property
    def through(self) -> list[int]:
        """Slots that running each link takes with what it is given."""
        return [self.running[k] + (self.crossing[k - 1] if k else 0) for k in range(len(self.running))]

    def _fill(self, first: int, last: int) -> None:
        time, choice = self.time[first, last], self.choice[first, last]
        saved = self.saved[first]
        if first == last:  # a link whose backward reads nothing of its own need not be recomputed
            time[:] = self.run_ps[first] if self.later[first] else 0
        else:
            self._shift(time, self.time[first + 1, last], saved)
            time += self.run_ps[first]
        time[: saved + max(self.running[first], self.reversing[first])] = np.inf
        choice[np.isfinite(time)] = _SAVE
        if first < last:
            # One row per link before which to split; what the first link is given is not counted, it is there anyway.
            run_ps = np.cumsum(self.run_ps[first:last], dtype=np.float32)
            through = np.maximum.accumulate([self.running[first], *self.through[first + 1 : last]])
            options = self.behind[first + 1 : last + 1, last] + self.time[first, first:last] + run_ps[:, None]
            options[np.arange(self.slots + 1)[None, :] < through[:, None]] = np.inf
            best = options.argmin(axis=0)
            least = np.take_along_axis(options, best[None, :], axis=0)[0]
            better = least < time
            time[better] = least[better]
            choice[better] = (first + 1 + best)[better]
        if first:
            self._shift(self.behind[first, last], time, self.crossing[first - 1])

    def _shift(self, target: NDArray[np.float32], source: NDArray[np.float32], slots: int) -> None:
        """Writes the times that remain with so many slots less."""
        if slots <= self.slots:
            target[slots:] = source[: self.slots + 1 - slots]

    @property
    def least(self) -> int | None:
        """The fewest slots with which the whole chain can be reversed; None for none."""
        enough = np.flatnonzero(np.isfinite(self.time[0, -1]))
        return int(enough[0]) if len(enough) else None

    def retention(self, slots: int) -> GapNumbers:
        """Reads the best plan for a number of slots off the table. O(graph)."""
        chain = self.chain
        inner = [AT_ONCE] * len(chain.links)
        crossing = [AT_ONCE] * len(chain.links)
        stack = [(0, len(chain.links) - 1, slots, KEEP)]
        while stack:
            first, last, free, since = stack.pop()
            behind = int(self.choice[first, last, free])
            if behind == _SAVE:
                inner[first] = since
                if first < last:  # what crosses behind the last link was kept by an earlier choice
                    crossing[first] = since
                    stack.append((first + 1, last, free - self.saved[first], since))
            else:
                crossing[behind - 1] = since
                stack.append((behind, last, free - self.crossing[behind - 1], since))
                stack.append((first, behind - 1, free, chain.need[behind - 1]))
        return chain.retention(inner, crossing)
