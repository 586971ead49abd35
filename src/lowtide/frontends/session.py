"""One fitted model: its budget, its captured graphs, and the plans in force.

A session is what the backend asks for an executor while a graph is compiled, and for a plan when a shape is met
for the first time. Where a model breaks into several graphs, all of them are found first by a call that computes
nothing, and planned as one.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec.structs import replace

from lowtide.capture.aot import Captured, make_backend
from lowtide.device.arena import nothing_engaged
from lowtide.device.generator_guard import unchanged_generators
from lowtide.device.observer import observe_if_free
from lowtide.device.semiprivate import graph_breaks, let_go_of_failed_backward
from lowtide.errors import BudgetWarning, InfeasibleBudget, PlanMismatch
from lowtide.frontends.discovery import Call, address, call_of, unchanged_tensors
from lowtide.frontends.enclosure import Enclosure
from lowtide.frontends.planning import MeasuredStep, check_plan_is_for, fit_plan, measure_step, plan_step
from lowtide.ir.layout import Obstacle
from lowtide.ir.plan import PlanRecord
from lowtide.ir.replay import replay_tables
from lowtide.pipeline import PlanOptions, Watch, place_around, resolve_budget
from lowtide.profile.cache import ProfileCache
from lowtide.runtime.dry import dry_results
from lowtide.runtime.executor import Key, Loaded, PlannedExecutor, load
from lowtide.runtime.homes import move_together
from lowtide.runtime.wall import Wall, Walled, make_tables

_LOG = logging.getLogger("lowtide")
_KEPT = 32  # plans whose code is kept for when they come into force again
Step = tuple[tuple[int, Key], ...]  # the graphs of one step: executor and shape of each


class Discover(BaseException):
    """Unwinds a call that met the first of several graphs without a plan: find the others before planning.

    Not an `Exception`, so that no handler in the user's own forward takes it for an error.
    """


@dataclass(eq=False)
class Session:
    """State of one `fit`, one `plan`, or one compiled backend.

    Arguments:
        options: how to plan.
        persistent: gives the tensors that live through the step whether or not a graph reads them.
        enclosure: the wall round its steps.
        given: a saved plan to use for the training graph instead of planning.
        watch: told of planning's progress.
    """

    options: PlanOptions
    persistent: Callable[[], Iterable[torch.Tensor]] = tuple
    enclosure: Enclosure = field(default_factory=Enclosure)
    given: PlanRecord | None = None
    watch: Watch | None = None
    plans: dict[Step, PlanRecord] = field(default_factory=dict)
    executors: list[PlannedExecutor] = field(default_factory=list)
    whole_model: bool = False  # a wrapper of ours sees every call, so discovery is possible
    step_key: Key = ()  # distinguishes the calls of a broken model, set by that wrapper
    cache: ProfileCache = field(default_factory=ProfileCache)
    _calls: dict[Step, MeasuredStep] = field(default_factory=dict)
    _around: dict[tuple[Step, tuple[Obstacle, ...]], PlanRecord] = field(default_factory=dict)
    _now: dict[Step, PlanRecord] = field(default_factory=dict)  # what is in force: a plan, or one around obstacles
    _code: dict[tuple[Step, int], tuple[PlanRecord, tuple[Loaded, ...]]] = field(default_factory=dict)
    _wall: Wall | None = None  # for which the code was made
    _dry: list[Call] | None = None
    _between_B: int = 0
    _captured: dict[int, Captured] = field(default_factory=dict)
    _breaks_before: int = field(default_factory=lambda: sum(graph_breaks().values()))
    _given_used: bool = False
    _discover: bool = False
    _entered: int = 0
    _before: dict[int, int] = field(default_factory=dict)  # forwards of each executor when the step began

    def __post_init__(self) -> None:
        self.backend = make_backend(self._executor_for)

    # what the rest of lowtide asks ----------------------------------------------------------------------------

    @property
    def calls(self) -> int:
        """How many graph forwards really ran in lowtide's code."""
        return sum(e.forwards for e in self.executors)

    @property
    def broken(self) -> bool:
        """Whether Dynamo broke a graph since this session began."""
        return sum(graph_breaks().values()) > self._breaks_before

    @property
    def in_force(self) -> list[PlanRecord]:
        """The plans that the latest calls used: around what earlier steps left, where they left something."""
        return list(self._now.values())

    @property
    def record(self) -> PlanRecord | None:
        """The latest plan that trains, or else the latest plan; None before the first step."""
        plans = list(self.plans.values())
        training = [p for p in plans if len(p.graph.segments) > 1] or plans
        return training[-1] if training else None

    @contextlib.contextmanager
    def dry(self) -> Iterator[list[Call]]:
        """Inside, graphs compute nothing and are listed in the order of their calls; nothing of the model changes."""
        calls = self._dry = list[Call]()
        self._before = {id(e): e.forwards for e in self.executors}
        try:
            with unchanged_tensors(self.persistent()), unchanged_generators(), nothing_engaged():
                seen = observe_if_free() if self.enclosure.encloses("cpu") else None
                with seen or contextlib.nullcontext():
                    yield calls
            # What code between the graphs takes; the graphs' own zeros are among it.
            self._between_B = 0 if seen is None else seen.peak_B
        finally:
            self._dry = None

    @contextlib.contextmanager
    def step(self, *, discover: bool) -> Iterator[None]:
        """One call of the model. Inside, with `discover`, a graph without a plan unwinds it before anything has run."""
        self._discover, self._entered = discover, self.calls
        self._before = {id(e): e.forwards for e in self.executors}
        try:
            yield
        finally:
            self._discover = False

    def plan_calls(self, calls: Sequence[Call], install: bool = True) -> PlanRecord:
        """Plans the graphs of one step as one and puts the result in force."""
        with nothing_engaged():
            found = measure_step(calls, self.persistent, self.options.machine, self.cache)
            if len(calls) > 1:
                self.enclosure.expect_between(found.graph, self._between_B)
            record = self._given_for(found)
            if record is None:
                record = plan_step(found, self.options, self.enclosure, watch=self.watch)
        if install:
            step = tuple((self.executors.index(c.executor), c.key) for c in calls)
            self._calls[step] = found
            self.plans[step] = record
            self._put_in_force(step, record)
        _LOG.info("planned %d graph(s): %s of %s B", len(calls), record.reserved_B, record.budget_B)
        return record

    def use(self, record: PlanRecord) -> None:
        """Puts a plan in force for every step of its program and shapes that has been met. Compiles nothing again.

        Raises:
            PlanMismatch: if no such step has been met.
        """
        steps = [step for step, present in self.plans.items() if present.graph.key == record.graph.key]
        if not steps:
            raise PlanMismatch(f"no step of the plan's program (graph {record.graph.key}) has been run here yet")
        for step in steps:
            self.plans[step] = fit_plan(record, self._calls[step], self.enclosure)
            self._put_in_force(step, self.plans[step])

    def _put_in_force(self, step: Step, record: PlanRecord) -> None:
        calls, bundle = self._calls[step].calls, self._calls[step].bundle
        self._now[step] = record
        code = self._code.get((step, id(record)))
        if code is None or code[0] is not record:
            walls = self._walls(record)
            parts = []
            for index, call in enumerate(calls):
                graph, schedule = record.graph, record.schedule
                if bundle is not None:
                    graph, schedule = call.specialised.graph, bundle.schedule_of(schedule, index)
                segments = bundle.segments[index] if bundle is not None else range(len(graph.segments))
                walled = None if walls is None else walls.part(segments)
                parts.append(load(graph, schedule, call.interfaces, call.specialised.held, walled))
            code = self._code[step, id(record)] = (record, tuple(parts))
            while len(self._code) > _KEPT:
                self._code.pop(next(iter(self._code)))
        for call, loaded in zip(calls, code[1], strict=True):
            call.executor.install(call.key, loaded)

    def replan(self, options: PlanOptions) -> None:
        """Takes every plan out of force; the next call of each shape is planned with the new options."""
        self.options, self.given = options, None
        self.enclosure.release()
        for known in (self.plans, self._around, self._now, self._code):
            known.clear()
        for executor in self.executors:
            executor.forget()

    # what the backend and the executors ask -------------------------------------------------------------------

    def _executor_for(self, captured: Captured) -> PlannedExecutor:
        executor = PlannedExecutor(
            key_of=lambda arguments: (*self._occasion(executor), *captured.key(arguments)),
            plan_for=self._plan_for,
            token_at=captured.slots.token if captured.joint.trains else -1,
            always_ask=lambda: self._dry is not None,
            settle=lambda key, loaded: self._settle(executor, key, loaded),
        )
        self.executors.append(executor)
        self._captured[id(executor)] = captured
        return executor

    def _occasion(self, executor: PlannedExecutor) -> Key:
        """What distinguishes the calls of one graph: equal layers of a broken model share a graph, not a plan."""
        if not self.step_key:
            return ()
        return (*self.step_key, executor.forwards - self._before.get(id(executor), 0))

    def _plan_for(self, executor: PlannedExecutor, key: Key, arguments: Sequence[Any]) -> Loaded:
        captured = self._captured[id(executor)]
        if self._dry is None and self.whole_model and self.broken:
            if self._discover and self.calls == self._entered:
                raise Discover
            # Another path than the call that computed nothing took: what has run cannot be undone.
            warnings.warn(
                "the model breaks into several graphs and what runs after a break depends on data: a graph was met "
                "that was not planned with the others, and is planned within the whole budget by itself. Mend the "
                "break (TORCH_LOGS=graph_breaks shows it), or write the choice with torch.cond or torch.where.",
                BudgetWarning,
                stacklevel=2,
            )
        call = call_of(executor, key, captured.specialise(arguments), arguments)
        if self._dry is not None:
            return self._dry_call(call, captured, arguments)
        self.plan_calls([call])
        return executor.in_force(key)

    def _walls(self, record: PlanRecord) -> Walled | None:
        if record.layout is None:
            self.enclosure.limit(record)
            return None
        wall = self.enclosure.enclose(record)
        tables = make_tables(replay_tables(record.graph, record.schedule, record.layout))
        return Walled(wall, tables, record.layout.height_B, self.enclosure.beside_B(record))

    def _settle(self, executor: PlannedExecutor, key: Key, loaded: Loaded) -> Loaded:
        """The plan to use, around what earlier steps left in the arena: usually nothing."""
        first = (self.executors.index(executor), key)
        step = next((s for s in self.plans if s[0] == first), None)
        wall = self.enclosure.wall
        if step is None or wall is None:
            return loaded  # a later graph of a step that the first one has settled
        if wall is not self._wall:  # code that was made for another arena would allocate there
            self._wall = wall
            for known in (self._code, self._around, self._now):
                known.clear()
        if self.enclosure.learn(self.plans[step].graph):
            self._plan_roomier(step)
        plan, now = self.plans[step], self._now.get(step)
        assert plan.layout is not None
        if not wall.arena.in_use_below(plan.layout.height_B):
            wanted = plan
        else:
            wanted = self._plan_around(step, wall.obstacles(self.enclosure.room_B(plan)))
        if wanted is not now:
            self._put_in_force(step, wanted)
        return executor.in_force(key)

    def _plan_roomier(self, step: Step) -> None:
        """Plans a step anew with a larger reserve, if the budget has room for it."""
        found = self._calls[step]
        try:
            with nothing_engaged():
                self.plans[step] = plan_step(found, self.options, self.enclosure, watch=self.watch)
        except InfeasibleBudget:
            self.enclosure.give_up(found.graph)
        else:
            _LOG.info("planned anew: code between the segments needs %d B", self.plans[step].reserve_B)

    def _plan_around(self, step: Step, obstacles: tuple[Obstacle, ...]) -> PlanRecord:
        known = self._around.get((step, obstacles))
        if known is not None:
            return known
        with nothing_engaged():  # what an exception or a cycle still holds may be gone
            let_go_of_failed_backward()
            gc.collect()
        plan, wall = self.plans[step], self.enclosure.wall
        assert wall is not None
        assert plan.layout is not None
        wall.arena.plan_top_B = plan.layout.height_B
        move_together(self._gradients(), wall.arena)
        obstacles = wall.obstacles(self.enclosure.room_B(plan))
        if not wall.arena.in_use_below(plan.layout.height_B):
            return plan
        with nothing_engaged():
            record = place_around(plan, obstacles, self.enclosure.room_B(plan))
            if record is None:
                record = plan_step(self._calls[step], self.options, self.enclosure, obstacles, self.watch)
        while len(self._around) >= _KEPT:
            self._around.pop(next(iter(self._around)))
        self._around[step, obstacles] = record
        return record

    def _gradients(self) -> Iterator[torch.Tensor]:
        return (t.grad for t in self.persistent() if t.is_leaf and t.grad is not None)

    def _dry_call(self, call: Call, captured: Captured, arguments: Sequence[Any]) -> Loaded:
        interface = call.interfaces[0]
        token = torch.zeros(1, dtype=torch.int64)
        specialised = call.specialised
        results = dry_results(specialised.graph, interface, arguments, specialised.held, captured.unchanged, token)
        call.outputs = tuple(address(r) for r in results[: len(captured.joint.forward_outputs)])
        assert self._dry is not None
        self._dry.append(call)
        return Loaded(0, (lambda _: results,), token)

    def _given_for(self, found: MeasuredStep) -> PlanRecord | None:
        """The saved plan, if it is for this program; evaluation graphs and later shapes are planned anew."""
        if self.given is None or not found.trains:
            return None
        if self._given_used and self.given.graph.key != found.graph.key:
            return None
        check_plan_is_for(self.given, found.graph.key, found.device)
        self._given_used = True
        of_plain_B = self.given.keep_all_peak_B + self.given.reserve_B
        budget_B = resolve_budget(self.options.budget, lambda: of_plain_B, found.device)
        return fit_plan(replace(self.given, budget_B=budget_B), found, self.enclosure)
