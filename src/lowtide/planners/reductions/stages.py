"""Graph -> stage program (`src/core/program.hpp`), and retention -> schedule.

One stage per program recipe that has to run, plus two per segment that take no time: ENTRY produces the values that the
caller gives, EXIT reads those that are handed over. The last exit also reads what the caller holds from earlier
segments, so it stays live to the end. Persistent values are a constant; host-resident ones are given by the first
entry, dropped at once, and come by fetch (`movement.py`). Runs on the host are no stages. Generator states and what
makes recomputations cheap are hidden (`hidden_values.py`). A recipe with candidates in place (`ir/in_place.py`) takes
one wherever the value that it overwrites dies in that very run.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lowtide._core import NEVER, Program, Retention
from lowtide.errors import PlanError
from lowtide.ir.graph import Effect, Graph, Value
from lowtide.ir.in_place import in_place_candidates
from lowtide.ir.schedule import HOST_ENGINE, Schedule
from lowtide.planners.implementations.choice import allowed_recipes
from lowtide.planners.offload.movement import (
    NOTHING_MOVES,
    Movement,
    movement,
    refuses_movement,
    refuses_to_move,
)
from lowtide.planners.offload.waits import with_waits
from lowtide.planners.reductions.hidden_values import (
    Replay,
    Shortcut,
    find_replays,
    find_shortcuts,
    hidden_B,
    hidden_values,
    keep_hidden,
    reserve_B,
    save_states,
)
from lowtide.planners.reductions.program import needed_program, refuses_overwriting, updated_values, updates
from lowtide.planners.reductions.stage import ENTRY, EXIT, Lifetimes, Lifting, Stage

GapNumbers = NDArray[np.int32]
"""A retention: per gap of a value's life, in the core's order, whether it is kept there (`core/retention.hpp`)."""


@dataclass(frozen=True)
class StageProgram:
    """The smaller problem and its inverse.

    Arguments:
        values: graph ids of the values it knows, in the core's order.
        hidden_B: bytes to set aside for what shortcuts need; every plan needs them.
        reserve_B: the same and those for generator states, which a plan without replays does not need.
    """

    graph: Graph
    stages: tuple[Stage, ...]
    values: tuple[int, ...]
    replays: dict[int, Replay]
    shortcuts: dict[int, Shortcut]
    hidden_B: int
    reserve_B: int
    movement: Movement = NOTHING_MOVES

    @cached_property
    def again(self) -> dict[int, int]:
        """Recipe of the program -> the recipe that recomputations run instead."""
        return {
            r: candidate.recipe for candidates in (self.replays, self.shortcuts) for r, candidate in candidates.items()
        }

    @cached_property
    def time_ps(self) -> int:
        """Time of every first run."""
        return sum(s.run_ps for s in self.stages)

    @cached_property
    def core_fixed_B(self) -> int:
        """Bytes that live throughout."""
        return self.graph.persistent_B

    @cached_property
    def size_B(self) -> tuple[int, ...]:
        """Bytes of each value, without what lives throughout; values here and below by their place in `values`."""
        updated = updated_values(self.graph, self.graph.program)
        return tuple(0 if v in updated else self.graph.values[v].size_B for v in self.values)

    @cached_property
    def read_ids(self) -> tuple[tuple[int, ...], ...]:
        """What each stage reads."""
        number = {v: i for i, v in enumerate(self.values)}
        return tuple(tuple(number[v] for v in s.reads) for s in self.stages)

    @cached_property
    def opened(self) -> tuple[int, ...]:
        """The first stage of each stage's segment."""
        first: dict[int, int] = {}
        for t, s in enumerate(self.stages):
            first.setdefault(s.segment, t)
        return tuple(first[s.segment] for s in self.stages)

    @cached_property
    def takeover_ids(self) -> tuple[tuple[int, ...], ...]:
        """What a run of each stage may overwrite, the preferred first."""
        number = {v: i for i, v in enumerate(self.values)}
        return tuple(tuple(number[v] for v, _ in s.takeovers) for s in self.stages)

    @cached_property
    def producer(self) -> tuple[int, ...]:
        """The stage that produces each value first."""
        return tuple(t for t, s in enumerate(self.stages) for _ in s.outputs)

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """The stages that read each value, in order."""
        uses: list[list[int]] = [[] for _ in self.values]
        for t, reads in enumerate(self.read_ids):
            for v in reads:
                uses[v].append(t)
        return tuple(tuple(u) for u in uses)

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """The last stage that reads each value; -1 for none."""
        return tuple(u[-1] if u else -1 for u in self.uses)

    @cached_property
    def _handed_over(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        last = len(self.stages) - 1
        exits = {s.segment: t for t, s in enumerate(self.stages) if s.recipe == EXIT}
        pinned, lost = [], []
        for value in (self.graph.values[v] for v in self.values):
            if value.id in self.movement.hosted:
                pinned.append(NEVER)
                lost.append(0)  # with the first entry: it is not there until it is fetched
                continue
            end = NEVER if value.leaves is None else exits[value.leaves]
            pinned.append(end if value.held else NEVER)
            lost.append(end if not value.held and end < last else NEVER)
        return tuple(pinned), tuple(lost)

    @property
    def pinned_from(self) -> tuple[int, ...]:
        """From the end of this stage on the caller holds the value; NEVER."""
        return self._handed_over[0]

    @property
    def lost_from(self) -> tuple[int, ...]:
        """At the end of this stage the caller frees the value; NEVER."""
        return self._handed_over[1]

    @cached_property
    def core(self) -> Program:
        """The same in flat arrays.

        Raises:
            PlanError: if the graph, from a file, is consistent and yet like none that is captured.
        """
        number = {v: i for i, v in enumerate(self.values)}
        segments = self.graph.segments
        try:
            return Program(
                *rows([number[v] for v in s.outputs] for s in self.stages),
                *rows(self.read_ids),
                _longs(s.run_ps for s in self.stages),
                _longs(s.recompute_ps for s in self.stages),
                _longs(s.trace_B for s in self.stages),
                _longs(s.recompute_trace_B for s in self.stages),
                _ints(s.recompute_through for s in self.stages),
                _ints(segments[s.segment].part for s in self.stages),
                _longs(self.size_B),
                _ints(self.pinned_from),
                _ints(self.lost_from),
                *rows(self.takeover_ids),
                _longs(s.takeover_trace_B for s in self.stages),
                _ints(self.opened),
                _longs(self.movement.fetch_B(self.graph.values[v]) for v in self.values),
                _longs(self.movement.send_B(self.graph.values[v]) for v in self.values),
                self.core_fixed_B,
            )
        except (KeyError, ValueError) as error:  # it reads what no stage makes, or makes something twice
            raise PlanError(f"planners know no program like that of graph {self.graph.name!r}: {error}") from error

    def keep_all(self, budget_B: int) -> Retention:
        """The retention that keeps everything, for a search under `budget_B` to start from."""
        return Retention(self.core, budget_B)

    def lift(self, state: Lifetimes, *, waits: bool = True) -> Schedule:
        """Writes a retention, or other lifetimes, down as a schedule of the graph.

        Arguments:
            waits: whether steps say what they wait for; without that a schedule that offloads something is not
                complete.

        O(steps).
        """
        lifting = Lifting(self.graph, self.stages, self.values, self.opened, self.again, self.movement, state)
        steps = save_states(keep_hidden(self.graph, list(lifting.steps()), self.shortcuts), self.replays)
        return with_waits(self.graph, steps) if self._moves and waits else Schedule(tuple(steps))

    @property
    def _moves(self) -> bool:
        return bool(self.movement.fetchable or self.movement.host_runs or self.movement.returning)


def refuses_stages(graph: Graph, *, offload: bool = False) -> str | None:
    """Says why a graph has no stage program, or None if it has one.

    Arguments:
        offload: whether values may be offloaded.
    """
    for recipe in graph.recipes:
        if recipe.engine not in ("compute", HOST_ENGINE):
            return f"recipe {recipe.id} ({recipe.op}) runs on engine {recipe.engine!r}; this planner knows one engine"
    refusal = refuses_movement(graph, graph.program) if offload else refuses_to_move(graph)
    return refusal or refuses_overwriting(graph)


def stage_program(graph: Graph, *, in_place: bool = True, movable: Collection[int] | None = None) -> StageProgram:
    """Reduces a graph to what the retention kernel plans.

    Arguments:
        graph: profiled and well-formed, not refused.
        in_place: whether runs may overwrite what dies in them.
        movable: values that are not persistent and may be sent to the host and fetched back, besides the host-resident
            ones; None where nothing can be offloaded.

    Raises:
        PlanError: if it is refused, or no order of recomputations can serve its own program.

    O(graph).
    """
    if reason := refuses_stages(graph, offload=movable is not None):
        raise PlanError(reason)
    program = needed_program(graph)
    allowed = allowed_recipes(graph)
    replays, shortcuts = find_replays(graph, program, allowed), find_shortcuts(graph, program, allowed)
    again = {r: candidate.recipe for candidates in (replays, shortcuts) for r, candidate in candidates.items()}
    hidden = hidden_values(shortcuts).union(r.state for r in replays.values())
    candidates = in_place_candidates(graph) if in_place else {}
    offloads = NOTHING_MOVES if movable is None else movement(graph, program, frozenset(movable) - hidden)
    stages = _recompute_limits(graph, _stages(graph, program, again, hidden, candidates, offloads), again)
    values = tuple(v for s in stages for v in s.outputs)
    always_B = hidden_B(graph, program, shortcuts)
    reserved_B = always_B + reserve_B(graph, replays)
    reduced = StageProgram(graph, stages, values, replays, shortcuts, always_B, reserved_B, offloads)
    if not reduced.keep_all(0).is_possible:
        raise PlanError("the program reads a value after the caller freed it, and nothing can rematerialise it")
    return reduced


def _stages(
    graph: Graph,
    program: tuple[int, ...],
    again: dict[int, int],
    hidden: frozenset[int],
    candidates: dict[int, tuple[int, ...]],
    offloads: Movement,
) -> list[Stage]:
    in_segment: list[list[int]] = [[] for _ in graph.segments]
    for r in program:
        in_segment[graph.recipes[r].segment].append(r)
    constant = frozenset(v.id for v in graph.values if v.persistent) - offloads.hosted
    unseen = constant | hidden | offloads.returning | {v for r in offloads.host_runs for v in graph.recipes[r].outputs}
    not_read = unseen | offloads.hosted
    stages: list[Stage] = []
    for segment, recipes in enumerate(in_segment):
        arriving = tuple(v.id for v in graph.values if v.arrives == segment and v.id not in unseen)
        arriving_B = sum(graph.values[v].size_B for v in arriving if v not in offloads.hosted)
        stages.append(Stage(ENTRY, segment, arriving, (), trace_B=arriving_B))
        for r in recipes:
            if r in offloads.host_runs:
                stages[-1] = replace(stages[-1], host_recipes=(*stages[-1].host_recipes, r))
                continue
            stage = _stage(graph, r, again.get(r), unseen)
            stages.append(stage if r in again else _in_place(graph, stage, candidates.get(r, ())))
        leaving = (v for v in graph.values if _is_read_at_exit(v, segment, graph))
        stages.append(Stage(EXIT, segment, (), tuple(v.id for v in leaving if v.id not in not_read)))
    return stages


def _is_read_at_exit(value: Value, segment: int, graph: Graph) -> bool:
    if value.leaves is None:
        return False
    return value.leaves == segment or (segment == len(graph.segments) - 1 and value.held)


def _stage(graph: Graph, recipe_id: int, again: int | None, unseen: frozenset[int]) -> Stage:
    recipe = graph.recipes[recipe_id]
    recompute = recipe if again is None else graph.recipes[again]
    excess_B = recompute.trace.peak_B - recipe.trace.peak_B if recipe.effect is Effect.PURE else 0  # is set aside
    return Stage(
        recipe_id,
        recipe.segment,
        outputs=tuple(v for v in recipe.outputs if v not in unseen),
        reads=tuple(v for v in recipe.read_values if v not in unseen),
        run_ps=round(recipe.time_s * 1e12),
        recompute_ps=round(recompute.time_s * 1e12),
        trace_B=recipe.trace.peak_B,
        recompute_trace_B=recompute.trace.peak_B - max(0, excess_B),
        recompute_through=-1 if recompute.effect is not Effect.PURE or recipe.consumes else len(graph.segments),
    )


def _in_place(graph: Graph, stage: Stage, candidates: Sequence[int]) -> Stage:
    """The stage with the candidates in place that save most and take the same time: other times make another choice."""
    plain = graph.recipes[stage.recipe]
    alike = [graph.recipes[w] for w in candidates if graph.recipes[w].time_s == plain.time_s]
    least_B = min((w.trace.peak_B for w in alike), default=stage.trace_B)
    if least_B >= stage.trace_B:
        return stage
    takeovers: dict[int, int] = {}
    for candidate in alike:
        if candidate.trace.peak_B == least_B:
            takeovers.setdefault(candidate.consumes[0].value, candidate.id)
    return replace(stage, takeovers=tuple(takeovers.items()), takeover_trace_B=least_B)


def _recompute_limits(graph: Graph, stages: list[Stage], again: dict[int, int]) -> tuple[Stage, ...]:
    """Turns "may recompute" into the last stage that may: in its own part, while all it reads may be read."""
    last_stage = {s.segment: t for t, s in enumerate(stages)}
    stage_of = {r: t for t, s in enumerate(stages) for r in (s.recipe, *s.host_recipes) if r >= 0}
    updated_at = {v: stage_of[r] for v, r in updates(graph, tuple(stage_of)).items()}
    limited: list[Stage] = []
    for stage in stages:
        if stage.recompute_through < 0:
            limited.append(stage)
            continue
        part = graph.segments[stage.segment].part
        recipe = graph.recipes[again.get(stage.recipe, stage.recipe)]
        reads = (graph.values[v].readable_through for v in recipe.read_values)
        through = min((s for s in reads if s is not None), default=len(graph.segments))
        segments = [k for k, s in enumerate(graph.segments) if s.part == part and stage.segment <= k <= through]
        updated = (updated_at[v] for v in recipe.read_values if v in updated_at)
        last = min((last_stage[segments[-1]] if segments else -1, *updated))
        limited.append(replace(stage, recompute_through=last))
    return tuple(limited)


def rows(lists: Iterable[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Lists in flat arrays: where each begins, and the items."""
    begin, items = [0], list[int]()
    for row in lists:
        items.extend(row)
        begin.append(len(items))
    return _ints(begin), _ints(items)


def _ints(items: Iterable[int]) -> NDArray[np.int32]:
    return np.fromiter(items, dtype=np.int32)


def _longs(items: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(items, dtype=np.int64)
