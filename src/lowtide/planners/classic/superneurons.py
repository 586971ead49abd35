"""SuperNeurons' recomputation: layers that compute much are checkpoints, segments of cheap ones are rematerialised.

L. Wang et al., "SuperNeurons: dynamic GPU memory management for training deep neural networks", PPoPP 2018, arXiv
1801.04380. A recipe computes much if its operator is a convolution, a matrix product or attention: the policy goes by
the kind of layer, not by its measured time. Where paths fork and join is a checkpoint too. What the paper does besides
recomputation (copies to the host, a cache of tensors, workspaces) is in `pool_stages`.

Units: `_B` bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from lowtide._core import NEVER
from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.chain.forward import AT_ONCE, Forward, forwards, taus_of
from lowtide.planners.classic.policy import attempt, follow
from lowtide.planners.reductions.stages import refuses_stages
from lowtide.planners.search import Search

HEAVY = re.compile(r"conv(?!ert)|attention|(^|\.|_)(mm|bmm|addmm|baddbmm|matmul|linear|dense)(\.|$|_)")

# Of a forward half and its segments, the stages that are rebuilt one by one.
LayerByLayer = Callable[[Forward, list[list[int]]], set[int]]


@final
@dataclass(frozen=True)
class SpeedCentric(AbstractPlanner):
    """A segment is rematerialised once, as a whole, when the backward enters it. O(graph)."""

    name: ClassVar[str] = "superneurons-speed"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program; it does not know budgets, so too small a one is UNSOLVED."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        return follow(problem, watch, self.name, self.refuses(problem), lambda search: _try(search, lambda *_: set()))


@final
@dataclass(frozen=True)
class MemoryCentric(AbstractPlanner):
    """For each need a value is rematerialised from its segment's checkpoint and dropped again. O(graph)."""

    name: ClassVar[str] = "superneurons-memory"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program; it does not know budgets, so too small a one is UNSOLVED."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""

        def all_of_them(_: Forward, found: list[list[int]]) -> set[int]:
            return {t for segment in found for t in segment}

        return follow(problem, watch, self.name, self.refuses(problem), lambda search: _try(search, all_of_them))


@final
@dataclass(frozen=True)
class CostAware(AbstractPlanner):
    """Speed-centric in segments that fit below the largest layer's bytes, else memory-centric. O(graph)."""

    name: ClassVar[str] = "superneurons-cost"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program; it does not know budgets, so too small a one is UNSOLVED."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        return follow(problem, watch, self.name, self.refuses(problem), lambda search: _try(search, _too_large))


def _try(search: Search, layer_by_layer: LayerByLayer) -> None:
    attempt(search, _taus(search, forwards(search.program), layer_by_layer))


def _taus(search: Search, halves: tuple[Forward, ...], layer_by_layer: LayerByLayer) -> NDArray[np.int32]:
    when: dict[int, int] = {}
    for half in halves:
        found = segments(half)
        one_by_one = layer_by_layer(half, found)
        for t in (t for segment in found for t in segment):
            when.update(dict.fromkeys(half.outputs[t], NEVER if t in one_by_one else AT_ONCE))
    return taus_of(halves, when, search.program)


def segments(half: Forward) -> list[list[int]]:
    """Finds the longest runs of cheap stages between checkpoints, each in order. O(edges).

    What is outside the trunk (copies of buffers, say) makes no path fork or join, and is kept.
    """
    trunk = frozenset(half.trunk)
    origins = {t: [p for p in half.parents[t] if p in trunk] for t in half.trunk}
    readers: dict[int, int] = dict.fromkeys(half.trunk, 0)
    for parents in origins.values():
        for parent in parents:
            readers[parent] += 1
    graph = half.program.graph
    found: dict[int, list[int]] = {}  # stage -> the segment that it belongs to
    for t, parents in origins.items():
        recipe = graph.recipes[half.program.stages[t].recipe]
        if HEAVY.search(recipe.op) or len(parents) > 1 or readers[t] > 1:
            continue
        segment = next((found[p] for p in parents if p in found), [])
        segment.append(t)
        found[t] = segment
    return list({id(segment): segment for segment in found.values()}.values())


def largest_layer_B(half: Forward) -> int:
    """Most bytes of one layer: what its forward produces, and what its backward reads and allocates. O(edges)."""
    layers_B = _layers_B(half)
    return max((half.size_B(t) + layers_B[t] for t in half.stages), default=0)


def cost_aware(search: Search, halves: tuple[Forward, ...]) -> NDArray[np.int32]:
    """The retention of `CostAware`."""
    return _taus(search, halves, _too_large)


def _layers_B(half: Forward) -> dict[int, int]:
    """Per forward stage what its backward reads and allocates."""
    program = half.program
    backward_B = dict.fromkeys(half.stages, 0)
    for t in range(half.turn, len(program.stages)):
        reads = program.read_ids[t]
        bytes_B = sum(program.size_B[v] for v in reads) + program.stages[t].trace_B
        for k in {program.producer[v] for v in reads} & backward_B.keys():
            if program.stages[t].recipe >= 0:
                backward_B[k] = max(backward_B[k], bytes_B)
    return backward_B


def _too_large(half: Forward, found: list[list[int]]) -> set[int]:
    """The stages of segments that, rebuilt as a whole, take more than the largest layer does by itself."""
    backward_B, largest_B = _layers_B(half), largest_layer_B(half)
    chosen: set[int] = set()
    for segment in found:
        if sum(half.size_B(t) for t in segment) + backward_B[segment[-1]] > largest_B:
            chosen.update(segment)
    return chosen
