"""Bytes that no schedule can do without, and the recipes that need them: three floors for three classes of schedules.

- `op_floor`: any recomputation; first runs in program order; one implementation per operator, in place or not.
  Generator states are taken to weigh nothing, so it holds for the graph as it is.
- `joint_floor`: the same for any choice of implementations. Weaker than `op_floor` is for one choice: what is there for
  the sake of an option does not count unless every option needs it.
- `working_set`: any recomputation and any offload; the program's own implementations, or any choice.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from lowtide.ir.graph import Graph, Value
from lowtide.ir.in_place import in_place_candidates
from lowtide.ir.schedule import HOST_ENGINE
from lowtide.planners.implementations.candidates import ALWAYS, Candidates, Owner
from lowtide.planners.reductions.program import needed_program
from lowtide.planners.reductions.stage import EXIT
from lowtide.planners.reductions.stages import StageProgram

CUTS = 12  # stages at which the minimum cut is computed
_NEAR = 0.99  # of the floor: recipes that set it
_SETTERS = 32  # of them at most


@dataclass(frozen=True, slots=True)
class Floor:
    """A proved floor and the recipes that reach at least 99 % of it, largest first; none where it is set by what the
    caller gives or gets at once."""

    floor_B: int
    recipes: tuple[int, ...]


def op_floor(program: StageProgram, cuts: int = CUTS) -> Floor:
    """Proves a floor.

    Per stage: persistent values, what it reads, its own trace's peak, and what is needed later and cannot be
    rematerialised; where values are handed over, all that leave together. At the most promising stages the exact
    minimum cut: the least bytes from which everything needed later can be computed at all.

    Arguments:
        cuts: how many minimum cuts to compute.

    O(graph) for the floors, and `cuts` maximum flows.
    """
    core = program.core
    floors_B = core.operator_floors().copy()
    keep_all_B = program.keep_all(0).live_B()
    # A stage can be raised to at most what is live there when everything is kept.
    floor_B = int(floors_B.max(initial=0))
    promising = np.argsort(-keep_all_B, kind="stable")
    promising = promising[keep_all_B[promising] > floor_B]
    chosen = {int(t) for t in promising[:: max(1, len(promising) // max(1, cuts - 2))][: cuts - 1]}
    chosen.add(int(floors_B.argmax()))
    for t in sorted(chosen):
        floors_B[t] = max(int(floors_B[t]), core.cut_floor(t))
    floor_B = int(floors_B.max(initial=0))
    setters = [int(t) for t in np.argsort(-floors_B, kind="stable") if floors_B[t] >= _NEAR * floor_B]
    return Floor(floor_B, tuple(dict.fromkeys(r for t in setters[:_SETTERS] for r in _recipes_of(program, t))))


def once_behind_the_turn(program: StageProgram) -> StageProgram:
    """The program in which what runs behind each part's first segment runs once: its gradients are never recomputed.

    A floor of it is one for fewer schedules, those of nearly all known methods, and says more: the floor for any
    recomputation lets finished gradients be dropped and computed a second time.
    """
    first: dict[int, int] = {}
    for k, segment in enumerate(program.graph.segments):
        first.setdefault(segment.part, k)
    forward = set(first.values())
    stages = (s if s.segment in forward else replace(s, recompute_through=-1) for s in program.stages)
    return replace(program, stages=tuple(stages))


def _recipes_of(program: StageProgram, t: int) -> list[int]:
    """The recipe of a stage; for an exit, those that make the largest values handed over there."""
    stage = program.stages[t]
    if stage.recipe >= 0:
        return [stage.recipe]
    if stage.recipe != EXIT:
        return []
    values = program.graph.values
    largest = sorted(stage.reads, key=lambda v: (-values[v].size_B, v))[:8]
    return [r for v in largest for r in program.graph.producers[v][:1]]


def joint_floor(candidates: Candidates) -> Floor:
    """Proves a floor for all choices.

    At every place of the program: what is there whatever is chosen, and the least over the options of what the first
    recipe reads and takes by itself; where a segment returns, all that is handed over together.

    O(graph + places * values that cannot be rematerialised).
    """
    graph = candidates.graph
    lifetimes = [(v.size_B, v.id, *there) for v in graph.values if (there := _there(candidates, v)) is not None]
    floors_B = []
    for place in range(len(candidates.segment_of)):
        always = {v: size_B for size_B, v, first, last in lifetimes if first <= place < last}
        floors_B.append(graph.persistent_B + sum(always.values()) + _run_B(candidates, place, always))
    ends_B = [_end_B(candidates, segment) for segment in range(len(graph.segments))]
    floor_B = max([*floors_B, *ends_B], default=0)
    setters = sorted((-floor, place) for place, floor in enumerate(floors_B) if floor >= _NEAR * floor_B)
    return Floor(floor_B, tuple(graph.program[place] for _, place in setters[:_SETTERS]))


def _there(candidates: Candidates, value: Value) -> tuple[int, int] | None:
    """The places from and up to which a value is resident in every schedule.

    None where nothing says so: it may be rematerialised, or nobody may need it.
    """
    makers = candidates.makers.get(value.id, ())
    if value.persistent or (value.arrives is None and not makers):
        return None
    begins = candidates.begins
    needed = [w.earliest + 1 for w in candidates.readers.get(value.id, ()) if w.owner == ALWAYS and w.runs]
    last = max(needed, default=0)
    made = [w.latest + 1 for w in makers]
    if value.arrives is not None:
        made.append(begins[value.arrives])
    first = max(made)
    if value.leaves is not None:
        last = max(last, begins[value.leaves + 1])
        if value.held:
            last = max(last, begins[-1])
            first = max(first, begins[value.leaves + 1]) if any(w.recompute_ps is not None for w in makers) else first
            return first, last
    if any(w.recompute_ps is not None for w in makers):
        return None
    return (first, last) if last > first else None


def _run_B(candidates: Candidates, place: int, always: dict[int, int]) -> int:
    """The least that the first recipe at a place takes, what it reads included."""
    values = candidates.graph.values
    by_owner: dict[Owner, int] = {}
    for candidate in candidates.at.get(place, ()):
        read_B = sum(values[v].size_B for v in candidate.reads if v not in always)
        taken_B = read_B + candidate.least_B if candidate.runs else 0
        by_owner[candidate.owner] = min(taken_B, by_owner.get(candidate.owner, taken_B))
    if ALWAYS in by_owner or not by_owner:
        return by_owner.get(ALWAYS, 0)
    group = next(iter(by_owner))[0]
    return min(by_owner.get((group, k), 0) for k in candidates.options[group])


def _end_B(candidates: Candidates, segment: int) -> int:
    """What is there together when a segment returns."""
    leaving = (v for v in candidates.graph.values if v.leaves is not None and not v.persistent and v.replaces is None)
    there_B = sum(v.size_B for v in leaving if v.leaves == segment or (v.held and (v.leaves or 0) < segment))
    return candidates.graph.persistent_B + there_B


def working_set(graph: Graph, *, persistent_may_move: bool = False, candidates: Candidates | None = None) -> Floor:
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
    return Floor(floor_B, tuple(r for b, r in found[:_SETTERS] if b >= _NEAR * floor_B))


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
