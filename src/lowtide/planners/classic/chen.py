"""Checkpoints along the forward, the rest is recomputed: Chen's square root, Chen's greedy, and every point.

T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear memory cost", arXiv 1604.06174 (2016). By the
square root rule every k-th candidate is a checkpoint, k the root of their number. Greedily (algorithm 3, with b swept)
one walks along the forward: when what was passed since the last checkpoint exceeds b, checkpoint. The variants for
graphs that are no chains, articulation points and linearised, follow P. Jain et al., "Checkmate: breaking the memory
wall with optimal tensor rematerialization", MLSys 2020; so does "checkpoint all (AP)", which is what wrapping each
block of a network in a checkpoint does. Checkpointing everything is `KeepAll`.

Units: `_B` bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.planners.chain.forward import Forward, forwards, retention_of_checkpoints
from lowtide.planners.classic.policy import AbstractPolicyPlanner, attempt
from lowtide.planners.search import Search

SWEEP = 300  # values of b, in equal steps up to what the whole forward produces


@final
@dataclass(frozen=True)
class ChenGreedy(AbstractPolicyPlanner):
    """The candidates are the forward's articulation points. O(sweep * graph)."""

    name: ClassVar[str] = "chen-greedy"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with the fastest plan of the sweep that fits, OPTIMAL where everything fits, else no plan."""
        sweep(search, linear=False)


@final
@dataclass(frozen=True)
class ChenGreedyLinear(AbstractPolicyPlanner):
    """The candidates are all forward recipes in program order. O(sweep * graph)."""

    name: ClassVar[str] = "chen-greedy-linear"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with the fastest plan of the sweep that fits, OPTIMAL where everything fits, else no plan."""
        sweep(search, linear=True)


def sweep(search: Search, *, linear: bool) -> None:
    """Tries the checkpoints of every b, those that come out alike once; stops at the limit of work."""
    halves = forwards(search.program)
    total_B = max((sum(half.size_B(t) for t in half.stages) for half in halves), default=0)
    seen: set[tuple[int, ...]] = set()
    for k in range(SWEEP):
        passed_B = total_B * k // SWEEP
        chosen = tuple(t for half in halves for t in _checkpoints(half, passed_B, linear=linear))
        if chosen not in seen and search.work < search.problem.work:
            seen.add(chosen)
            attempt(search, retention_of_checkpoints(search.program, halves, chosen))


def _checkpoints(half: Forward, most_B: int, *, linear: bool) -> list[int]:
    candidates = frozenset(half.stages if linear else half.articulation_points)
    chosen, passed_B = [], 0
    for t in half.stages:
        passed_B += half.size_B(t)
        if t in candidates and passed_B > most_B:
            chosen.append(t)
            passed_B = 0
    return chosen


@final
@dataclass(frozen=True)
class ChenSqrt(AbstractPolicyPlanner):
    """The candidates are the forward's articulation points. O(graph)."""

    name: ClassVar[str] = "chen-sqrt"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        _at_points(search)


@final
@dataclass(frozen=True)
class ChenSqrtLinear(AbstractPolicyPlanner):
    """The candidates are all forward recipes in program order. O(graph)."""

    name: ClassVar[str] = "chen-sqrt-linear"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        _linear(search)


def every_root(candidates: Sequence[int]) -> tuple[int, ...]:
    """Every k-th candidate, k the root of their number, rounded down."""
    k = math.isqrt(len(candidates))
    return tuple(candidates[k - 1 :: k]) if k else ()


def _at_points(search: Search) -> None:
    halves = forwards(search.program)
    chosen = [t for half in halves for t in every_root(half.articulation_points)]
    attempt(search, retention_of_checkpoints(search.program, halves, chosen))


def _linear(search: Search) -> None:
    halves = forwards(search.program)
    chosen = [t for half in halves for t in every_root(half.stages)]
    attempt(search, retention_of_checkpoints(search.program, halves, chosen))


@final
@dataclass(frozen=True)
class CheckpointAll(AbstractPolicyPlanner):
    """All articulation points. O(graph)."""

    name: ClassVar[str] = "checkpoint-all-points"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        _every_point(search)


def _every_point(search: Search) -> None:
    halves = forwards(search.program)
    chosen = [t for half in halves for t in half.articulation_points]
    attempt(search, retention_of_checkpoints(search.program, halves, chosen))
