"""The active plans of one fitted model, as code, and around what earlier steps left in the arena."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from msgspec.structs import replace

from lowtide.device.arena import nothing_engaged
from lowtide.device.contributions import behind
from lowtide.device.engine_passes import let_go_of_failed_backward
from lowtide.device.engines import Engines
from lowtide.errors import InfeasibleBudget, PlanMismatch
from lowtide.ir.bundle import unmerged
from lowtide.ir.graph import Graph
from lowtide.ir.layout import SMALL_B, LiveBlock
from lowtide.ir.plan import PlanRecord
from lowtide.ir.replay import carried_by, replay_tables
from lowtide.ir.schedule import Schedule
from lowtide.record import place_around
from lowtide.runtime.executor import Key, Loaded, PlannedExecutor, load
from lowtide.runtime.hard_budget import HardBudget, PlacedSegments, make_tables, places_of
from lowtide.runtime.persistent_storages import move_together
from lowtide.session.backward_placement import BackwardPlacements
from lowtide.session.budget_scope import BudgetScope
from lowtide.session.graph_discovery import Call
from lowtide.session.planning import MeasuredStep, fit_plan

_LOG = logging.getLogger("lowtide")
ACTIVE_STEPS = 64  # whose plans are active: those used last
_KEPT = 32  # plans whose code is kept for when they become active again
Step = tuple[tuple[int, Key], ...]  # the graphs of one step: number of the executor, and shape, of each
Loader = Callable[[Call, Graph, Schedule, PlacedSegments | None, Engines | None], Loaded]


def _forwards(calls: Sequence[Call]) -> list[tuple[object, Key]]:
    return [(call.specialised.captured.program, call.key) for call in calls]


def load_call(
    call: Call, graph: Graph, schedule: Schedule, placed: PlacedSegments | None, engines: Engines | None
) -> Loaded:
    """The code of a schedule for one of the graphs of a step."""
    return load(graph, schedule, call.interfaces, call.specialised.held, placed, engines)


class StepPlanner(Protocol):
    """Makes the plans of a session's steps."""

    def plan_around(self, step: MeasuredStep, live_blocks: tuple[LiveBlock, ...]) -> PlanRecord:
        """Plans a measured step around what is in the way.

        Raises:
            InfeasibleBudget: if no plan fits.
        """

    def host_resident(self, step: MeasuredStep, record: PlanRecord) -> Iterable[torch.Tensor] | None:
        """The persistent tensors that live on the host under a plan; None where none ever does."""

    def forget_call(self, graph: tuple[int, Key]) -> None:
        """Hears of every graph for whose shape there is no plan any more."""


@dataclass(eq=False)
class ActivePlans:
    """One plan per step that has been met of late, and the code that stands for it now.

    Arguments:
        budget_scope: the budget that the steps share.
        planner: makes the plans.
        plans: per step, the plan of an arena that holds nothing else.
        loader: makes the code of a schedule; another one observes what the code computes.
    """

    budget_scope: BudgetScope
    planner: StepPlanner
    plans: dict[Step, PlanRecord] = field(default_factory=dict)
    loader: Loader = load_call
    _measured: dict[Step, MeasuredStep] = field(default_factory=dict)
    _around: dict[tuple[Step, tuple[LiveBlock, ...]], PlanRecord] = field(default_factory=dict)
    _now: dict[Step, PlanRecord] = field(default_factory=dict)  # the active plan, or one around live blocks
    _code: dict[tuple[Step, int], tuple[PlanRecord, tuple[Loaded, ...]]] = field(default_factory=dict)
    _hard_budget: HardBudget | None = None  # for which the code was made
    _used: dict[Step, None] = field(default_factory=dict)  # those used last at the end
    _announced: list[Step] = field(default_factory=list)  # steps whose plan becomes active with the next step

    @property
    def now(self) -> list[PlanRecord]:
        """The plans that the latest calls used: around what earlier steps left, where they left something."""
        return list(self._now.values())

    @property
    def latest(self) -> PlanRecord | None:
        """The latest plan that trains, or else the latest plan; None before the first step."""
        plans = list(self.plans.values())
        training = [p for p in plans if p.graph.trains] or plans
        return training[-1] if training else None

    def variants_of(self, calls: Sequence[Call]) -> list[Graph]:
        """Graphs of the steps that have the same forwards, captured for gradients that come otherwise."""
        forwards = _forwards(calls)
        return [m.graph for m in self._measured.values() if _forwards(m.calls) == forwards]

    def install(self, step: Step, measured: MeasuredStep, record: PlanRecord) -> None:
        """Activates the plan of a step."""
        self._measured[step] = measured
        self._put(step, record)
        self.plans[step] = record
        self._note_use(step)

    def announce(self, step: Step, measured: MeasuredStep, record: PlanRecord) -> None:
        """Activates the plan of a step when the next one begins: one by other plans is in progress."""
        self._measured[step], self.plans[step] = measured, record
        self._announced.append(step)
        self._note_use(step)

    def begin(self, between_B: int = 0) -> None:
        """A step is about to begin.

        Arguments:
            between_B: what code between the graphs was seen to take since the plan was made.
        """
        hard_budget = self.budget_scope.hard_budget
        heights_B = (p.layout.height_B for p in self.plans.values() if p.layout is not None)
        if hard_budget is not None and hard_budget.arena.in_use_below(max(heights_B, default=0)):
            self.budget_scope.bring_in()  # buffers that the step before put in the place of others
        while self._announced:
            step = self._announced.pop()
            if step not in self.plans:
                continue
            if self.budget_scope.reserve.takes_more(self.plans[step].graph, between_B):
                self._plan_with_larger_reserve(step)
            self._put(step, self.plans[step])

    def use(self, record: PlanRecord) -> None:
        """Activates a plan for every step of its program and shapes that has been met. Compiles nothing again.

        Raises:
            PlanMismatch: if no such step has been met, or the plan's decisions are not legal for it.
        """
        steps = [step for step, present in self.plans.items() if present.graph.key == record.graph.key]
        if not steps:
            raise PlanMismatch(f"no step of the plan's program (graph {record.graph.key}) has been run here yet")
        fitted = [fit_plan(record, self._measured[step], self.budget_scope) for step in steps]
        for step, found in zip(steps, fitted, strict=True):
            present = self.plans[step]
            self.install(step, self._measured[step], replace(found, graphs=present.graphs, breaks=present.breaks))

    def drop(self, graph: tuple[int, Key]) -> list[MeasuredStep]:
        """Forgets the steps of which a call of a graph is part: that call stands for nothing any more.

        Returns: what was measured of them.
        """
        found = {step: self._measured[step] for step in self.plans if graph in step}
        for step in found:
            self._forget(step)
        self._announced = [step for step in self._announced if step not in found]
        return list(found.values())

    def clear(self) -> None:
        """Takes every plan out of force."""
        self.plans.clear()
        self._measured.clear()
        self._used.clear()
        self._announced.clear()
        self._forget_code()

    def forget_graph(self, number: int) -> None:
        """Forgets every step in which a graph takes part.

        Arguments:
            number: of its executor.
        """
        for step in [s for s in self.plans if any(n == number for n, _ in s)]:
            self._forget(step)

    def _note_use(self, step: Step) -> None:
        """Notes that a step is taken, and forgets the one that has not been for longest where there are many."""
        self._used.pop(step, None)
        self._used[step] = None
        while len(self._used) > ACTIVE_STEPS:
            self._forget(next(iter(self._used)))

    def _forget(self, step: Step) -> None:
        """Drops a step: it is planned again when it is met again. An outstanding backward keeps its plan."""
        measured = self._measured.pop(step)
        del self.plans[step], self._used[step]
        self._now.pop(step, None)
        self._around = {key: record for key, record in self._around.items() if key[0] != step}
        self._code = {key: code for key, code in self._code.items() if key[0] != step}
        others = {graph for other in self.plans for graph in other}
        for graph, call in zip(step, measured.calls, strict=True):
            if graph not in others:
                call.executor.remove(call.key)
                self.planner.forget_call(graph)

    def settle(
        self, first: tuple[int, Key], executor: PlannedExecutor, loaded: Loaded, arguments: Sequence[Any]
    ) -> Loaded:
        """The code to use for the step that begins, around what earlier steps left in the arena: usually nothing.

        Arguments:
            first: the step's first graph.
            loaded: its active code.
            arguments: of that graph.
        """
        step = next((s for s in self.plans if s[0] == first), None)
        if step is not None:
            self._note_use(step)
        hard_budget = self.budget_scope.hard_budget
        if hard_budget is None or loaded.placed is None:
            return loaded
        if step is None:  # a later graph of a step that the first one has settled
            if (id(self), first) not in hard_budget.begun:
                hard_budget.stray()
            return loaded
        hard_budget.begin_step(tuple((id(self), graph) for graph in step))
        if hard_budget is not self._hard_budget:  # code that was made for another arena would allocate there
            self._hard_budget = hard_budget
            self._forget_code()
        if self.budget_scope.reserve.learn(self.plans[step].graph, hard_budget):
            self._plan_with_larger_reserve(step)
        plan, now = self.plans[step], self._now.get(step)
        self._set_host_resident(step, plan)
        assert plan.layout is not None
        hard_budget.free_place(plan.layout.height_B)
        trains = len(plan.graph.segments) > 1
        if not (trains and hard_budget.is_awaited) and not hard_budget.arena.in_use_below(plan.layout.height_B):
            active = plan
        else:  # what computes without gradients is done before a backward that waits needs its places
            live_blocks = hard_budget.live_blocks(self.budget_scope.free_B(plan), promises=trains)
            active = self._plan_around(step, hard_budget, live_blocks, arguments)
        if active is not now:
            self._put(step, active)
        if active is not plan:
            self._set_host_resident(step, active)
        return executor.active(first[1])

    def _set_host_resident(self, step: Step, record: PlanRecord) -> None:
        host_resident = self.planner.host_resident(self._measured[step], record)
        if host_resident is not None:
            self.budget_scope.set_host_resident(host_resident)

    def _forget_code(self) -> None:
        for known in (self._code, self._around, self._now):
            known.clear()

    def _put(self, step: Step, record: PlanRecord) -> None:
        measured = self._measured[step]
        self._now[step] = record
        code = self._code.get((step, id(record)))
        if code is None or code[0] is not record:
            placed, engines = self._placed_segments(step, record), self.budget_scope.engines_for(record)
            parts = []
            bundle = unmerged(record.graph) if len(measured.calls) > 1 else None
            for index, call in enumerate(measured.calls):
                graph, schedule = record.graph, record.schedule
                segments: Sequence[int] = range(len(graph.segments))
                if bundle is not None:
                    graph, schedule = bundle.graph_of(index), bundle.schedule_of(schedule, index)
                    segments = bundle.segments[index]
                part = None if placed is None else placed.part(segments)
                parts.append(self.loader(call, graph, schedule, part, engines))
            code = self._code[step, id(record)] = (record, tuple(parts))
            while len(self._code) > _KEPT:
                self._code.pop(next(iter(self._code)))
        for call, loaded in zip(measured.calls, code[1], strict=True):
            call.executor.install(call.key, loaded)

    def _placed_segments(self, step: Step, record: PlanRecord) -> PlacedSegments | None:
        if record.layout is None:
            self.budget_scope.limit(record)
            return None
        away = self.planner.host_resident(self._measured[step], record)
        hard_budget = self.budget_scope.enclose(record, away or ())
        tables = replay_tables(record.graph, record.schedule, record.layout)
        inputs_B = self.budget_scope.inputs_B(record)
        return PlacedSegments(
            hard_budget,
            make_tables(tables, hard_budget.arena.device),
            record.layout.reach_B if record.layout.live_blocks else record.layout.height_B,
            inputs_B,
            places_of(tables, hard_budget.arena.alignment_B),
            carried_by(record.schedule, record.layout, len(tables)),
            tuple(range(len(tables))),
            BackwardPlacements(record, self, hard_budget.arena.device).around,
        )

    def whole_free_B(self, record: PlanRecord) -> int:
        """Where the part of the arena ends that a plan may use, with what it leaves free for those that wait."""
        with self.budget_scope.reserve.spent():
            reserve_B = self.budget_scope.reserve.reserve_B(record.graph)
        return self.budget_scope.free_B(replace(record, reserve_B=reserve_B))

    def ask_for(self, record: PlanRecord, lacking_B: int) -> None:
        """Lets the plans of a graph leave more free from now on: beyond what they happen to leave."""
        layouts = [p.layout for p in self.plans.values() if p.graph.key == record.graph.key and p.layout is not None]
        height_B = max((layout.height_B for layout in layouts), default=0)
        self.budget_scope.reserve.ask(record.graph, max(0, self.whole_free_B(record) - height_B) + lacking_B)

    def _plan_with_larger_reserve(self, step: Step) -> None:
        """Plans a step anew with a larger reserve, if the budget has the bytes for it."""
        graph = self._measured[step].graph
        try:
            with nothing_engaged():
                self.plans[step] = self.planner.plan_around(self._measured[step], ())
        except InfeasibleBudget:
            self.budget_scope.reserve.freeze(graph)
        else:
            self.budget_scope.reserve.hold(graph)
            _LOG.info("planned anew: code between the segments needs %d B", self.plans[step].reserve_B)

    def _plan_around(
        self, step: Step, hard_budget: HardBudget, live_blocks: tuple[LiveBlock, ...], arguments: Sequence[Any]
    ) -> PlanRecord:
        known = self._around.get((step, live_blocks))
        if known is not None:
            return known
        with nothing_engaged():  # what an exception or a cycle still holds may be gone
            let_go_of_failed_backward()
            gc.collect()
        plan = self.plans[step]
        free_B = self.whole_free_B(plan) if hard_budget.is_awaited else self.budget_scope.free_B(plan)
        assert plan.layout is not None
        hard_budget.arena.plan_top_B = plan.layout.height_B
        if not hard_budget.is_awaited:  # else they might be relocated to where a backward is going to allocate
            move_together(self._gradients(arguments), hard_budget.arena)
        trains = len(plan.graph.segments) > 1
        live_blocks = hard_budget.live_blocks(free_B, promises=trains)
        if not any(o.offset_B < plan.layout.height_B for o in live_blocks):
            return plan
        known = self._around.get((step, live_blocks))
        if known is not None:  # gradients come to lie where those of the round before lay
            return known
        with nothing_engaged():
            record = place_around(plan, live_blocks, free_B)
            if record is None and hard_budget.is_awaited:  # then the backwards that wait are placed anew when they come
                record = place_around(plan, hard_budget.live_blocks(free_B, promises=False), free_B)
            if record is None:
                record = self._plan_anew(step, hard_budget, hard_budget.live_blocks(free_B, promises=False))
        while len(self._around) >= _KEPT:
            self._around.pop(next(iter(self._around)))
        self._around[step, live_blocks] = record
        return record

    def _plan_anew(self, step: Step, hard_budget: HardBudget, live_blocks: tuple[LiveBlock, ...]) -> PlanRecord:
        """Another plan for a step, around live blocks.

        Raises:
            InfeasibleBudget: if there is none; where forwards wait for their backwards, later plans leave more free.
        """
        if not hard_budget.is_awaited:
            return self.planner.plan_around(self._measured[step], live_blocks)
        try:
            with self.budget_scope.reserve.spent():
                return self.planner.plan_around(self._measured[step], live_blocks)
        except InfeasibleBudget as error:
            self.ask_for(self.plans[step], max((error.smallest_B or error.floor_B) - error.budget_B, SMALL_B))
            raise InfeasibleBudget(
                f"{error}\nEarlier forwards wait for their backwards. Drop their losses and repeat them all: from now "
                "on the plan of each leaves more free for the others, if it can.",
                budget_B=error.budget_B,
                floor_B=error.floor_B,
                smallest_B=error.smallest_B,
                operators=error.operators,
            ) from error

    def _gradients(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Gradients of parameters that live through the next step.

        Arguments:
            arguments: of the step; a model that `torch.compile` hands over is known by them alone.
        """
        given = (behind(a) for a in arguments if isinstance(a, torch.Tensor))
        known = {id(t): t for t in (*self.budget_scope.persistent(), *given)}
        return [t.grad for t in known.values() if t.is_leaf and t.grad is not None]
