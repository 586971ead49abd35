"""Bytes that no schedule can do without, whatever it offloads to the host: the largest working set of any recipe.

Class: any recomputation and any offload; the program's own implementations, in place or not, or any choice of options.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lowtide.ir.graph import Graph
from lowtide.ir.in_place import in_place_candidates
from lowtide.ir.schedule import HOST_ENGINE
from lowtide.planners.bounds.joint_cut import JOINT_CLASS
from lowtide.planners.implementations.candidates import ALWAYS, Candidates, Owner
from lowtide.planners.reductions.dead_code import needed_program

OFFLOAD_CLASS = "any recomputation; any offload; one implementation per operator"
OFFLOAD_JOINT_CLASS = f"any recomputation; any offload; {JOINT_CLASS}"


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """A proved floor and the recipes that reach at least 99 % of it, largest first; none where it is set by what the
    caller gives or gets at once."""

    floor_B: int
    recipes: tuple[int, ...]


def working_set(graph: Graph, *, persistent_may_move: bool = False, candidates: Candidates | None = None) -> WorkingSet:
    """Proves a floor for schedules that may offload values.

    While a recipe runs, what it reads is there, and what it allocates; persistent values device-resident, and what the
    caller holds since an earlier segment. Where a segment begins or ends, all that arrives or leaves at once.

    Arguments:
        persistent_may_move: whether movable persistent values may be host-resident.
        candidates: of the graph, for a floor that holds whatever options are chosen; None for the program's own.

    O(graph + segments * values).
    """
    taken_B, fixed_B, held_B = _Taken(graph, persistent_may_move), _fixed_B(graph, persistent_may_move), _held_B(graph)
    found = _of_program(graph, taken_B) if candidates is None else _of_any_choice(candidates, taken_B)
    found.sort(key=lambda item: (-item[0], item[1]))
    floor_B = max([fixed_B, *(fixed_B + b for b in _exchanged_B(graph, held_B)), *(b for b, _ in found[:1])])
    return WorkingSet(floor_B, tuple(r for b, r in found[:32] if b >= 0.99 * floor_B))


def least_options(candidates: Candidates, *, persistent_may_move: bool = False) -> dict[int, int]:
    """The choice of the options whose largest working set is smallest; of equals the first.

    Arguments: as for `working_set`.
    """
    by_owner = _by_owner(candidates, _Taken(candidates.graph, persistent_may_move))
    choice = {
        group: min(options, key=lambda k, g=group: (max(by_owner[g, k])[0], k))  # type: ignore[misc]
        for group, options in candidates.options.items()
        if all((group, k) in by_owner for k in options)
    }
    return {group: option for group, option in choice.items() if option}


class _Taken:
    """Bytes that are there while a recipe runs."""

    def __init__(self, graph: Graph, persistent_may_move: bool) -> None:
        self._graph, self._held_B = graph, _held_B(graph)
        self._fixed, self._fixed_B = _fixed(graph, persistent_may_move), _fixed_B(graph, persistent_may_move)
        self._on_host = {r.outputs for r in graph.recipes if r.engine == HOST_ENGINE} if persistent_may_move else set()

    def __call__(self, r: int, inner_B: int) -> int:
        recipe = self._graph.recipes[r]
        if recipe.engine != "compute" or recipe.outputs in self._on_host:  # an update that the host can do instead
            return 0
        held, values = recipe.segment, self._graph.values
        there = {v for v in recipe.read_values if v not in self._fixed and not _is_held(self._graph, v, held)}
        return self._fixed_B + self._held_B[held] + sum(values[v].size_B for v in there) + inner_B


def _fixed(graph: Graph, persistent_may_move: bool) -> set[int]:
    """Device-resident persistent values."""
    return {
        v.id for v in graph.values if v.persistent and v.memory == "device" and not (persistent_may_move and v.movable)
    }


def _fixed_B(graph: Graph, persistent_may_move: bool) -> int:
    return sum(graph.values[v].size_B for v in _fixed(graph, persistent_may_move))


def _of_program(graph: Graph, taken_B: Callable[[int, int], int]) -> list[tuple[int, int]]:
    """Bytes and recipe of everything that the program has to run."""
    in_place = in_place_candidates(graph)
    return [
        (taken_B(r, min(graph.recipes[candidate].trace.peak_B for candidate in (r, *in_place.get(r, ())))), r)
        for r in needed_program(graph)
    ]


def _of_any_choice(candidates: Candidates, taken_B: Callable[[int, int], int]) -> list[tuple[int, int]]:
    """The same of what runs whatever is chosen; of every group its least option, that by its largest recipe."""
    by_owner = _by_owner(candidates, taken_B)
    found = by_owner.get(ALWAYS, [])
    for group, options in candidates.options.items():
        if all((group, k) in by_owner for k in options):
            found.append(min(max(by_owner[group, k]) for k in options))
    return found


def _by_owner(candidates: Candidates, taken_B: Callable[[int, int], int]) -> dict[Owner, list[tuple[int, int]]]:
    """Bytes and recipe of everything that an option has to run."""
    found: dict[Owner, list[tuple[int, int]]] = {}
    for candidate in candidates.candidates:
        if candidate.runs:
            found.setdefault(candidate.owner, []).append(
                (taken_B(candidate.recipe, candidate.least_B), candidate.recipe)
            )
    return found


def _is_held(graph: Graph, value: int, segment: int) -> bool:
    v = graph.values[value]
    return v.leaves is not None and v.leaves < segment and v.held and v.memory == "device" and v.replaces is None


def _held_B(graph: Graph) -> list[int]:
    """Per segment, bytes that the caller holds since an earlier one."""
    return [
        sum(v.size_B for v in graph.values if _is_held(graph, v.id, segment)) for segment in range(len(graph.segments))
    ]


def _exchanged_B(graph: Graph, held_B: list[int]) -> list[int]:
    """Bytes, without persistent values, where each segment begins and where it ends."""
    found = []
    for segment in range(len(graph.segments)):
        arriving_B = sum(
            v.size_B
            for v in graph.values
            if v.arrives == segment and not v.persistent and not _is_held(graph, v.id, segment)
        )
        leaving_B = sum(
            v.size_B
            for v in graph.values
            if v.leaves == segment and v.memory == "device" and not v.persistent and v.replaces is None
        )
        found += [held_B[segment] + arriving_B, held_B[segment] + leaving_B]
    return found
