"""Graph -> stage program (`src/core/program.hpp`), and retention -> schedule.

One stage per program recipe that has to run, plus two per segment that take no time: ENTRY brings the values that
the caller gives, EXIT reads those that are handed over. The last exit also reads what the caller holds from
earlier segments, so it stays live to the end. Persistent values are a constant. Generator states (`replays.py`) and
what makes reruns cheap (`shortcuts.py`) are hidden. A recipe that has ways in place (`ir/in_place.py`) takes one
wherever the value that it overwrites dies in that very run.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lowtide._core import NEVER, Program, Retention
from lowtide.errors import PlanError
from lowtide.ir.graph import Effect, Graph, Value
from lowtide.ir.in_place import in_place_ways
from lowtide.ir.schedule import Boundary, Drop, Run, Schedule, Step
from lowtide.planners.reductions.dead_code import needed_program
from lowtide.planners.reductions.first_option import allowed_recipes
from lowtide.planners.reductions.replays import Replay, find_replays, reserve_B, save_states
from lowtide.planners.reductions.shortcuts import Shortcut, find_shortcuts, hidden_B, hidden_values, keep_hidden
from lowtide.planners.reductions.updates import refuses_overwriting, updated_values, updates

ENTRY = -1
EXIT = -2


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: a recipe, or ENTRY or EXIT, in a segment; values by their ids in the graph.

    Arguments:
        takeovers: values that a run may overwrite, the preferred first, and the recipe that does so.
        takeover_trace_B: the peak of such a recipe's trace.
    """

    recipe: int
    segment: int
    outputs: tuple[int, ...]
    reads: tuple[int, ...]
    run_ps: int = 0
    rerun_ps: int = 0
    trace_B: int = 0
    rerun_trace_B: int = 0
    rerun_through: int = -1
    takeovers: tuple[tuple[int, int], ...] = ()
    takeover_trace_B: int = 0


class Stays(Protocol):
    """What `lift` writes down: which stages run again when, and which values stay how long."""

    def reruns(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Per stage the stages rerun before it, in order, as rows: where each begins, and the items."""

    def spans(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Per value its stays, as pairs of the stage that brings it and the stage of its last use, as rows."""


@dataclass(frozen=True)
class StageProgram:
    """The smaller problem and the way back.

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

    @cached_property
    def again(self) -> dict[int, int]:
        """Recipe of the program -> the recipe that reruns run instead."""
        return {r: way.recipe for ways in (self.replays, self.shortcuts) for r, way in ways.items()}

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
        """Bytes of each value, beside what lives throughout; values here and below by their place in `values`."""
        at_home = updated_values(self.graph, self.graph.program)
        return tuple(0 if v in at_home else self.graph.values[v].size_B for v in self.values)

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
        """The stage that brings each value first."""
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
    def _homegoing(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        last = len(self.stages) - 1
        exits = {s.segment: t for t, s in enumerate(self.stages) if s.recipe == EXIT}
        pinned, lost = [], []
        for value in (self.graph.values[v] for v in self.values):
            end = NEVER if value.leaves is None else exits[value.leaves]
            pinned.append(end if value.held else NEVER)
            lost.append(end if not value.held and end < last else NEVER)
        return tuple(pinned), tuple(lost)

    @property
    def pinned_from(self) -> tuple[int, ...]:
        """From the end of this stage on the caller holds the value; NEVER."""
        return self._homegoing[0]

    @property
    def lost_from(self) -> tuple[int, ...]:
        """At the end of this stage the caller lets go of the value; NEVER."""
        return self._homegoing[1]

    @cached_property
    def core(self) -> Program:
        """The same in flat arrays."""
        number = {v: i for i, v in enumerate(self.values)}
        segments = self.graph.segments
        return Program(
            *rows([number[v] for v in s.outputs] for s in self.stages),
            *rows(self.read_ids),
            _longs(s.run_ps for s in self.stages),
            _longs(s.rerun_ps for s in self.stages),
            _longs(s.trace_B for s in self.stages),
            _longs(s.rerun_trace_B for s in self.stages),
            _ints(s.rerun_through for s in self.stages),
            _ints(segments[s.segment].part for s in self.stages),
            _longs(self.size_B),
            _ints(self.pinned_from),
            _ints(self.lost_from),
            *rows(self.takeover_ids),
            _longs(s.takeover_trace_B for s in self.stages),
            _ints(self.opened),
            self.core_fixed_B,
        )

    def keep_all(self, budget_B: int) -> Retention:
        """The retention that keeps everything, for a search under `budget_B` to start from."""
        return Retention(self.core, budget_B)

    def lift(self, state: Stays) -> Schedule:
        """Writes a retention, or other stays, down as a schedule of the graph. O(steps)."""
        rerun_begin, rerun = (a.tolist() for a in state.reruns())
        span_begin, span = (a.tolist() for a in state.spans())
        starts: dict[tuple[int, int], int] = {}  # (graph value, first stage) -> last stage
        ends: list[dict[int, int]] = [{} for _ in self.stages]  # per last stage: graph value -> first stage
        for i, v in enumerate(self.values):
            for k in range(span_begin[i], span_begin[i + 1], 2):
                starts[v, span[k]] = span[k + 1]
                ends[span[k + 1]][v] = span[k]
        steps: list[Step] = []
        for t in range(len(self.stages)):
            order = [*rerun[rerun_begin[t] : rerun_begin[t + 1]], t]
            steps.extend(self._stage_steps(t, order, starts, ends[t]))
        return Schedule(tuple(save_states(keep_hidden(self.graph, steps, self.shortcuts), self.replays)))

    def _stage_steps(
        self, t: int, order: list[int], starts: dict[tuple[int, int], int], ending: dict[int, int]
    ) -> Iterable[Step]:
        last_read = {v: i for i, r in enumerate(order) for v in self.stages[r].reads}
        for i, r in enumerate(order):
            stage = self.stages[r]
            kept = [v for v in stage.outputs if starts.get((v, t), -1) > t or last_read.get(v, -1) > i]
            if stage.recipe == ENTRY:
                yield Boundary(stage.segment)
                yield from (Drop(v) for v in stage.outputs if v not in kept)
            elif stage.recipe != EXIT:
                recipe = stage.recipe if r == t else self.again.get(stage.recipe, stage.recipe)
                gone = [v for v in stage.reads if v in ending and last_read[v] == i]
                for value, way in stage.takeovers:
                    if value in gone and ending[value] >= self.opened[t]:
                        gone.remove(value)
                        recipe = way
                        break
                yield Run(recipe, tuple(v for v in kept if (v, t) in starts))
                yield from map(Drop, gone)


def refuses_stages(graph: Graph) -> str | None:
    """Says why a graph has no stage program, or None if it has one."""
    for recipe in graph.recipes:
        if recipe.engine != "compute":
            return f"recipe {recipe.id} ({recipe.op}) runs on engine {recipe.engine!r}; this planner knows one engine"
    return refuses_overwriting(graph)


def stage_program(graph: Graph, *, in_place: bool = True) -> StageProgram:
    """Reduces a graph to what the retention kernel plans.

    Arguments:
        graph: profiled and well-formed, not refused.
        in_place: whether runs may overwrite what dies in them.

    Raises:
        PlanError: if it is refused, or no order of reruns can serve its own program.

    O(graph).
    """
    if reason := refuses_stages(graph):
        raise PlanError(reason)
    program = needed_program(graph)
    allowed = allowed_recipes(graph)
    replays, shortcuts = find_replays(graph, program, allowed), find_shortcuts(graph, program, allowed)
    again = {r: way.recipe for ways in (replays, shortcuts) for r, way in ways.items()}
    hidden = hidden_values(shortcuts).union(r.state for r in replays.values())
    ways = in_place_ways(graph) if in_place else {}
    stages = _rerun_limits(graph, _stages(graph, program, again, hidden, ways), again)
    values = tuple(v for s in stages for v in s.outputs)
    always_B = hidden_B(graph, program, shortcuts)
    reserved_B = always_B + reserve_B(graph, replays)
    reduced = StageProgram(graph, stages, values, replays, shortcuts, always_B, reserved_B)
    if not reduced.keep_all(0).is_possible:
        raise PlanError("the program reads a value after the caller let go of it, and nothing can bring it back")
    return reduced


def _stages(
    graph: Graph,
    program: tuple[int, ...],
    again: dict[int, int],
    hidden: frozenset[int],
    ways: dict[int, tuple[int, ...]],
) -> list[Stage]:
    in_segment: list[list[int]] = [[] for _ in graph.segments]
    for r in program:
        in_segment[graph.recipes[r].segment].append(r)
    movable = [v for v in graph.values if not v.persistent and v.id not in hidden]
    stages: list[Stage] = []
    for segment, recipes in enumerate(in_segment):
        arriving = tuple(v.id for v in movable if v.arrives == segment)
        arriving_B = sum(graph.values[v].size_B for v in arriving)
        stages.append(Stage(ENTRY, segment, arriving, (), trace_B=arriving_B))
        for r in recipes:
            stage = _stage(graph, r, again.get(r), hidden)
            stages.append(stage if r in again else _in_place(graph, stage, ways.get(r, ())))
        stages.append(Stage(EXIT, segment, (), tuple(v.id for v in movable if _is_read_at_exit(v, segment, graph))))
    return stages


def _is_read_at_exit(value: Value, segment: int, graph: Graph) -> bool:
    if value.leaves is None:
        return False
    return value.leaves == segment or (segment == len(graph.segments) - 1 and value.held)


def _stage(graph: Graph, recipe_id: int, again: int | None, hidden: frozenset[int]) -> Stage:
    recipe = graph.recipes[recipe_id]
    rerun = recipe if again is None else graph.recipes[again]
    excess_B = rerun.trace.peak_B - recipe.trace.peak_B if recipe.effect is Effect.PURE else 0  # is set aside
    return Stage(
        recipe_id,
        recipe.segment,
        outputs=tuple(v for v in recipe.outputs if v not in hidden),
        reads=tuple(v for v in recipe.read_values if not graph.values[v].persistent and v not in hidden),
        run_ps=round(recipe.time_s * 1e12),
        rerun_ps=round(rerun.time_s * 1e12),
        trace_B=recipe.trace.peak_B,
        rerun_trace_B=rerun.trace.peak_B - max(0, excess_B),
        rerun_through=-1 if rerun.effect is not Effect.PURE or recipe.consumes else len(graph.segments),
    )


def _in_place(graph: Graph, stage: Stage, ways: Sequence[int]) -> Stage:
    """The stage with the ways in place that save most and take the same time: other times make another choice."""
    plain = graph.recipes[stage.recipe]
    alike = [graph.recipes[w] for w in ways if graph.recipes[w].time_s == plain.time_s]
    least_B = min((w.trace.peak_B for w in alike), default=stage.trace_B)
    if least_B >= stage.trace_B:
        return stage
    takeovers: dict[int, int] = {}
    for way in alike:
        if way.trace.peak_B == least_B:
            takeovers.setdefault(way.consumes[0].value, way.id)
    return replace(stage, takeovers=tuple(takeovers.items()), takeover_trace_B=least_B)


def _rerun_limits(graph: Graph, stages: list[Stage], again: dict[int, int]) -> tuple[Stage, ...]:
    """Turns "may rerun" into the last stage that may: in its own part, while all it reads may be read."""
    last_stage = {s.segment: t for t, s in enumerate(stages)}
    stage_of = {s.recipe: t for t, s in enumerate(stages)}
    updated_at = {v: stage_of[r] for v, r in updates(graph, [s.recipe for s in stages if s.recipe >= 0]).items()}
    limited: list[Stage] = []
    for stage in stages:
        if stage.rerun_through < 0:
            limited.append(stage)
            continue
        part = graph.segments[stage.segment].part
        recipe = graph.recipes[again.get(stage.recipe, stage.recipe)]
        reads = (graph.values[v].readable_through for v in recipe.read_values)
        through = min((s for s in reads if s is not None), default=len(graph.segments))
        segments = [k for k, s in enumerate(graph.segments) if s.part == part and stage.segment <= k <= through]
        updated = (updated_at[v] for v in recipe.read_values if v in updated_at)
        last = min((last_stage[segments[-1]] if segments else -1, *updated))
        limited.append(replace(stage, rerun_through=last))
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
