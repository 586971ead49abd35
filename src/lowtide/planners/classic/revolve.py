"""Revolve: the fewest repeated forward steps of a chain for a number of checkpoints.

A. Griewank, A. Walther, "Algorithm 799: revolve", ACM Transactions on Mathematical Software 26 (2000). With s
checkpoints, the given state among them, and at most r runs of each step, a chain of beta(s, r) = C(s + r, s) steps can
be reversed; l steps take t(l, s) = r l - beta(s + 1, r - 1) forward steps, r the least with beta(s, r) >= l. It takes
all steps for alike; the number of checkpoints is swept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import KEEP
from lowtide.ir.plan import Problem
from lowtide.planners.chain.chain import Chain, chain_of, refuses_chain
from lowtide.planners.chain.forward import AT_ONCE, forwards
from lowtide.planners.classic.policy import AbstractPolicyPlanner, attempt
from lowtide.planners.reductions.stages import GapNumbers, refuses_stages, stage_program
from lowtide.planners.search import Search

_DENSE = 64  # up to here every number of checkpoints is tried, then ever fewer


@final
@dataclass(frozen=True)
class Revolve(AbstractPolicyPlanner):
    """Each recipe of the forward is a step. O(checkpoints * graph)."""

    name: ClassVar[str] = "revolve"

    def refuses(self, problem: Problem) -> str | None:
        """A bundle, and a forward that is not a chain.

        The test: of the recipes on the paths from the input to the loss, each reads, of what such recipes produce, only
        what the one before it brought.
        """
        if reason := refuses_stages(problem.graph):
            return reason
        program = stage_program(problem.graph)
        if reason := refuses_chain(program):
            return reason
        (half,) = forwards(program)
        points = set(half.articulation_points)
        outside = next((t for t in half.trunk if t not in points), None)
        if outside is None:
            return None
        recipe = problem.graph.recipes[program.stages[outside].recipe]
        return f"the forward is not a chain: a path leads past recipe {recipe.id} ({recipe.op})"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with the fastest plan of the sweep that fits, OPTIMAL where everything fits, else no plan."""
        _sweep(search)


@final
@dataclass(frozen=True)
class RevolveBlocks(AbstractPolicyPlanner):
    """What lies between two articulation points of the forward is a step. O(checkpoints * graph)."""

    name: ClassVar[str] = "revolve-blocks"

    def refuses(self, problem: Problem) -> str | None:
        """A bundle, and a forward with fewer than two articulation points."""
        return refuses_stages(problem.graph) or refuses_chain(stage_program(problem.graph))

    def attempts(self, search: Search) -> None:
        """FEASIBLE with the fastest plan of the sweep that fits, OPTIMAL where everything fits, else no plan."""
        _sweep(search)


def _sweep(search: Search) -> None:
    chain = chain_of(search.program)
    slots = len(chain.links)
    while slots >= 1 and search.work < search.problem.work:
        attempt(search, revolve(chain, slots))
        slots -= max(1, slots // _DENSE)


def revolve(chain: Chain, slots: int) -> GapNumbers:
    """Says when each link's values are kept, for a number of checkpoints, the given state among them. O(graph)."""
    inner = [AT_ONCE] * len(chain.links)
    crossing = [AT_ONCE] * len(chain.links)
    # Reverse links first to stop, `free` checkpoints in hand, from the stage on at which this begins.
    stack = [(0, len(chain.links), slots, KEEP)]
    while stack:
        first, stop, free, since = stack.pop()
        if stop - first == 1:
            inner[first] = since
            continue
        middle = first + split(stop - first, free)
        crossing[middle - 1] = since
        stack.append((first, middle, free, chain.need[middle - 1]))
        stack.append((middle, stop, free - 1, since))
    return chain.retention(inner, crossing)


def beta(slots: int, repeats: int) -> int:
    """The longest chain that can be reversed with so many checkpoints and runs of each step."""
    return math.comb(slots + repeats, slots) if repeats >= 0 else 0


def _repeats(steps: int, slots: int) -> int:
    repeats = 0
    while beta(slots, repeats) < steps:
        repeats += 1
    return repeats


def advances(steps: int, slots: int) -> int:
    """The fewest forward steps that recompute a chain's states, each state's own last run not counted."""
    repeats = _repeats(steps, slots)
    return repeats * steps - beta(slots + 1, repeats - 1)


def split(steps: int, slots: int) -> int:
    """How far to advance before the next checkpoint, so that the whole takes `advances` steps."""
    if slots <= 1:
        return steps - 1
    repeats = _repeats(steps, slots)
    return max(1, beta(slots, repeats - 2), steps - beta(slots - 1, repeats))
