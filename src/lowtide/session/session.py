"""One fitted model: its budget, its captured graphs, and the active plans.

A session is what the backend asks for an executor while a graph is compiled, and for a plan when a shape is met
for the first time. Where a model breaks into several graphs, its first step runs graph by graph under provisional plans
(`first_step.py`), and all of its graphs are then planned as one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from msgspec.structs import replace

from lowtide.capture.aot import make_backend
from lowtide.capture.breaks import all_breaks
from lowtide.capture.captured import Captured
from lowtide.capture.captured_call import IN_BACKWARD, AbstractSteps
from lowtide.compiled.backend import CompileTimes, make_inductor_backend
from lowtide.device.arena import nothing_engaged
from lowtide.device.arrivals import Arrivals, GradientLayout
from lowtide.device.fingerprint import precision_switches
from lowtide.device.generator_guard import unchanged_generators
from lowtide.device.graph_breaks import graph_breaks
from lowtide.device.observer import observe_if_free
from lowtide.device.storage import identity_of
from lowtide.device.strides import hint_of
from lowtide.distributed.agreement import Agreement
from lowtide.errors import BackwardError, BudgetWarning, InexactCapture, InfeasibleBudget, UnsupportedOperator
from lowtide.ir.compilers import INDUCTOR
from lowtide.ir.fidelity import Doubt
from lowtide.ir.graph import Role
from lowtide.ir.layout import LiveBlock
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import GraphBreak, PlanRecord
from lowtide.ir.text import save_graph as write_graph
from lowtide.pipeline import linked
from lowtide.plan_cache.lookup import PlanLookup
from lowtide.planners.base import Watch
from lowtide.profile.cache import ProfileCache
from lowtide.profile.exactness import Exactness
from lowtide.record import PlanOptions
from lowtide.runtime.dry import dry_results
from lowtide.runtime.executor import AbstractPlans, Key, Loaded, PlannedExecutor, load
from lowtide.session.active_plans import ActivePlans
from lowtide.session.budget_scope import BudgetScope
from lowtide.session.executors import Entrance, Executors
from lowtide.session.first_step import FirstStep, Undo, provisional_schedule, undone_where_refused
from lowtide.session.graph_discovery import Call, call_of, unchanged_tensors
from lowtide.session.implementations import Menu
from lowtide.session.planning import MeasuredStep, check_plan_is_for, fit_plan, measure_step, plan_step
from lowtide.units import Budget

_LOG = logging.getLogger("lowtide")
_OTHER_PATH = (
    "the model breaks into several graphs and what runs after a break depends on data: a graph was met that was not "
    "planned with the others, and is planned within the whole budget by itself. Mend the break "
    "(TORCH_LOGS=graph_breaks shows it), or write the choice with torch.cond or torch.where."
)
_OTHER_ARRIVALS = (
    "the model breaks into several graphs, and how its gradients come changes from step to step (other outputs "
    "in the loss, or other layouts): a graph as captured for one of them was met that was not planned with the others "
    "of this step, and is planned within the whole budget by itself. Mend the break (TORCH_LOGS=graph_breaks shows "
    "it): one graph has a plan for every case."
)
_AS_EXPECTED = (
    "The budget that is named is for gradients as they are expected: of all outputs of the model, each laid out as its "
    "output, unless earlier steps have shown which come and how. For others the step is planned again, in its "
    "backward, and may take more."
)
_ENDED_EARLY = (
    "torch.utils.checkpoint runs a forward again only until it has saved all that the backward needs, and this model "
    "overwrites a buffer behind that, or it is not known whether it does: plain PyTorch's buffers cannot be told. The "
    "forward, and its run in this backward, have changed buffers; nothing that is behind the checkpoint in the "
    "backward has a gradient. Train inside `with torch.utils.checkpoint.set_checkpoint_early_stop(False):`, or without "
    "the checkpoint: a fitted model recomputes by itself what does not fit in the budget."
)


class SeveralGraphs(BaseException):
    """Unwinds a whole step whose model breaks into several graphs, before the first of them has run.

    Not an `Exception`, so that no handler in the user's own forward takes it for an error.
    """


class Whole(Protocol):
    """Turns a session's graphs into whole training steps."""

    def complete(self, call: Call) -> None:
        """Gives a captured graph what the optimizer does, before it is planned."""

    def placement(self, step: MeasuredStep) -> tuple[int, ...] | None:
        """The values that are host-resident, where another plan has chosen that already."""

    def settle(self, step: MeasuredStep, record: PlanRecord) -> None:
        """Notes what a plan has placed on the host, so that others keep it there."""

    def unsettle(self) -> None:
        """Lets the next plan choose."""

    def host_resident(self, step: MeasuredStep, record: PlanRecord) -> Iterable[torch.Tensor]:
        """The tensors that a plan places on the host."""

    def forget(self, graph: tuple[int, Key]) -> None:
        """Drops what a graph was given for a shape: number of its executor, and the shape."""

    def run(self, executor: PlannedExecutor, key: Key, loaded: Loaded, arguments: list[Any]) -> Sequence[Any]:
        """Runs such a graph; returns what the captured forward returns."""


@dataclass(eq=False)
class Session(AbstractPlans, AbstractSteps):
    """State of one `fit`, one `plan`, or one compiled backend.

    Arguments:
        options: how to plan.
        budget_scope: the hard budget of its steps, with everything that lives through them.
        given: a saved plan to use for the training graph instead of planning.
        watch: told of planning's progress.
        asked_with: what else has to live as long.
        whole: where the session's graphs are whole training steps.
        agreement: with the other ranks that train the model; None where it trains alone.
    """

    options: PlanOptions
    budget_scope: BudgetScope = field(default_factory=BudgetScope)
    given: PlanRecord | None = None
    watch: Watch | None = None
    asked_with: object = None
    whole: Whole | None = None
    agreement: Agreement | None = None
    executors: Executors = field(init=False)
    whole_model: bool = False  # a wrapper of ours sees every call, so discovery is possible
    step_key: Key = ()  # distinguishes the calls of a broken model, set by that wrapper
    cache: ProfileCache = field(default_factory=ProfileCache)
    lookup: PlanLookup = field(default_factory=PlanLookup)
    arrivals: dict[str, Arrivals] = field(default_factory=dict)  # how gradients came; see `AbstractSteps`
    menu: Menu = field(init=False)
    compile_times: CompileTimes = field(default_factory=CompileTimes)
    _dry: list[Call] | None = None
    _between_B: int = 0
    _broken: bool = False
    _reasons: dict[str, int] | None = None  # of the breaks in this process, when the call began
    _causes: dict[str, None] = field(default_factory=dict)  # why Dynamo broke this model
    _ends: dict[GraphBreak, None] = field(default_factory=dict)  # where graphs of it ended
    _doubts: dict[Doubt, None] = field(default_factory=dict)  # why results may differ, besides what captures know
    _given_used: bool = False
    _entered: int = 0  # graph forwards when the step began
    _before: dict[int, int] = field(default_factory=dict)  # forwards of each executor when the step began
    _signature: Callable[[], Key] = tuple
    _first: FirstStep | None = None  # in progress
    _latest_first: FirstStep | None = None  # whose backward may still show something
    _steps: int = 0  # begun
    _instead_of: tuple[int, Key] | None = None  # the call that is being computed again, by another capture of its graph
    _replaced: dict[tuple[int, Key], Call] = field(default_factory=dict)  # calls, by what they stand for from now on
    _stopped: bool = False  # whether a graph was refused while it ran
    _ran: list[Captured] = field(default_factory=list)  # graphs whose forwards have run in this step, in order
    _undo: Undo | None = None  # of the step in progress, where parts of it may run before it is refused

    def __post_init__(self) -> None:
        several = self._has_several_graphs if self.whole is None else None
        self.backend = (
            make_inductor_backend(self._executor_for, self._note_left_out, self._note_times)
            if self.options.compiler == INDUCTOR
            else make_backend(self._executor_for, several, self if self.whole is None else None, self._note_left_out)
        )
        self.lock = self.budget_scope.turn
        self.menu = Menu(Exactness(self.cache))
        self.active_plans = ActivePlans(self.budget_scope, self)
        self.executors = Executors()

    # what the rest of lowtide asks ----------------------------------------------------------------------------

    @property
    def calls(self) -> int:
        """The number of graph forwards that really ran in lowtide's code."""
        return self.executors.forwards

    @property
    def is_exact(self) -> bool:
        """Whether results have to be those of plain PyTorch, bit for bit."""
        return self.options.numerics is Numerics.EXACT

    @property
    def broken(self) -> bool:
        """Whether Dynamo broke a graph in a call of this session's."""
        if not self._broken:
            self._look_for_breaks()
        return self._broken

    @property
    def breaks(self) -> tuple[GraphBreak, ...]:
        """The places at which this session's model breaks into several graphs."""
        self._look_for_breaks()
        return all_breaks(self._ends, self._causes)

    @contextlib.contextmanager
    def dry(self) -> Iterator[list[Call]]:
        """Inside, graphs compute nothing and are listed in the order of their calls; nothing of the model changes."""
        calls = self._dry = list[Call]()
        self._before = {e.number: e.forwards for e in self.executors}
        try:
            with (
                self._own_breaks(),
                unchanged_tensors(self.budget_scope.persistent()),
                unchanged_generators(),
                nothing_engaged(),
            ):
                seen = (
                    observe_if_free(self.budget_scope.device)
                    if self.budget_scope.encloses(self.budget_scope.device)
                    else None
                )
                with seen or contextlib.nullcontext():
                    yield calls
            # What code between the graphs takes; the graphs' own zeros are among it.
            self._between_B = 0 if seen is None else seen.peak_B
            self._enlarge(calls)
        finally:
            self._dry = None

    @contextlib.contextmanager
    def step(self, signature: Callable[[], Key] = tuple) -> Iterator[None]:
        """One call of the model. If it meets several graphs for the first time, they are planned as one at its end.

        Arguments:
            signature: tells the shapes of the call, for models that break.

        Raises:
            LowtideError: where the step is refused; buffers and generators are as they were before it.
        """
        self._steps += 1
        for number in self.executors.sweep():
            self.active_plans.forget_graph(number)
        self._plan_replaced()
        self.active_plans.begin(self._shown_between_B())
        self._entered, self._signature, self._ran = self.calls, signature, []
        self._before = {e.number: e.forwards for e in self.executors}
        may_run = self.whole_model and (self._broken or not self.active_plans.plans)
        undo = self._undo = Undo() if may_run else None
        try:
            agreed = contextlib.nullcontext() if self.agreement is None else self.agreement.call()
            with undone_where_refused(undo, lambda: self.broken or self._stopped), self._own_breaks(), agreed:
                yield
                self._plan_first()
        finally:
            if self._first is not None:
                self._first.graph_begins()  # ends the observation of the code that raised
            self._first = self._undo = None
            self._stopped = False

    def _plan_first(self) -> None:
        """Plans the graphs that a first step has met as one, for the steps after it."""
        if self.agreement is not None:
            self.agreement.forward_ended()
        if (first := self._first) is None:
            return
        first.forward_ended()
        self._between_B = first.between_B
        self._first = None
        self._enlarge(first.calls)
        self.plan_calls(first.calls, begun=True)
        if self.budget_scope.encloses(self.budget_scope.device):
            self._latest_first = first

    def _shown_between_B(self) -> int:
        """Bytes that code between the graphs of the latest first step took, its backward included."""
        first, self._latest_first = self._latest_first, None
        if first is None:
            return 0
        first.graph_begins()  # ends the observation of a backward that failed
        return first.between_B

    def check_end_of_recomputation(self) -> None:
        """Refuses a second forward that is ended early, if plain PyTorch's may end before it has changed every buffer.

        Raises:
            BackwardError: then.
        """
        ran = list(self._ran)
        while ran and not ran[-1].saves and not ran[-1].joint.mutated:
            ran.pop()
        # What an earlier graph overwrites is overwritten before the last one saves anything.
        if ran and not ran[-1].saves_last:
            raise BackwardError(_ENDED_EARLY)

    def end_observation(self) -> None:
        """Ends the observation of code between the graphs of the latest first step; later allocations are not its."""
        if self._latest_first is not None:
            self._latest_first.graph_begins()

    def plan_calls(
        self,
        calls: Sequence[Call],
        install: bool = True,
        save_graph: str | Path | None = None,
        *,
        begun: bool = False,
    ) -> PlanRecord:
        """Plans the graphs of one step as one and activates the result.

        Arguments:
            save_graph: where to write the measured graph before it is planned.
            begun: whether the step's backward is still to come, by other plans: then it is active from the next on.
        """
        with nothing_engaged():
            found = measure_step(calls, self.budget_scope.persistent, self.options, self.cache, self.lookup)
            if save_graph is not None:
                write_graph(found.graph, save_graph)
            self.expect_between(found)
            record = self._given_for(found)
            if record is None:
                record = self._plan(found, runs=install) if self.whole is None else self._plan_whole(found, install)
        if install:
            step = tuple((c.executor.number, c.key) for c in calls)
            (self.active_plans.announce if begun else self.active_plans.install)(step, found, record)
            self.budget_scope.reserve.share(self.active_plans.variants_of(calls))
        _LOG.info("planned %d graph(s): %s of %s B", len(calls), record.reserved_B, record.budget_B)
        return record

    def doubt(self, *reasons: Doubt) -> None:
        """Notes why results of this session's model may differ from plain PyTorch's.

        Raises:
            InexactCapture: where they have to be equal.
        """
        if not reasons:
            return
        if self.is_exact:
            raise inexact(reasons)
        self._doubts.update(dict.fromkeys(reasons))

    def expect_between(self, found: MeasuredStep) -> None:
        """Notes, for the plans of a step of several graphs, what code between them took when it was last found."""
        if len(found.calls) > 1:
            self.budget_scope.reserve.expect_between(found.graph, self._between_B)

    def replan(self, options: PlanOptions) -> None:
        """Takes every plan out of force; the next call of each shape is planned with the new options."""
        self.options, self.given = options, None
        self.forget()

    def forget(self) -> None:
        """Takes every plan out of force: what counts under the budget has changed."""
        self._given_used = False
        self._latest_first = None
        self._replaced.clear()
        if self.whole is not None:
            self.whole.unsettle()
        self.budget_scope.release()
        self.active_plans.clear()
        self.lookup.forget_plans()
        for executor in self.executors:
            executor.forget()

    @contextlib.contextmanager
    def _own_breaks(self) -> Iterator[None]:
        """Inside, what Dynamo counts as graph breaks of this process are this session's."""
        self._reasons = graph_breaks()
        try:
            yield
        finally:
            self._look_for_breaks()
            self._reasons = None

    def _has_several_graphs(self) -> bool:
        """Whether the model that is being captured is known to break; of `torch.compile`'s, whether any has."""
        return self.broken if self.whole_model else bool(graph_breaks())

    def _look_for_breaks(self) -> None:
        """Notes why Dynamo broke a graph since this session's call began; outside a call there is nothing to see."""
        if self._reasons is None:
            return
        for reason, count in graph_breaks().items():
            if count > self._reasons.get(reason, 0):
                self._broken = True
                self._causes[reason] = None

    # what the backend and the executors ask -------------------------------------------------------------------

    def _note_left_out(self, found: GraphBreak) -> None:
        """Notes a graph that runs in plain Python."""
        self._ends[found] = None

    def _note_times(self, times: CompileTimes) -> None:
        """Notes what one graph took before it could be planned."""
        self.compile_times += times

    def _executor_for(self, captured: Captured) -> Entrance:
        if self.is_exact and not captured.fidelity.is_exact:
            raise inexact(captured.fidelity.doubts)
        executor = PlannedExecutor(
            self,
            token_at=captured.slots.token if captured.joint.trains else -1,
            shares=captured.joint.handed_over,
            undivided=frozenset(captured.joint.undivided if self.is_exact else ()),
        )
        if captured.ended is not None:
            self._ends[captured.ended] = None
        return self.executors.admit(executor, captured)

    @property
    def step_number(self) -> int:
        """Of the step that runs."""
        return self._steps

    @property
    def has_one_graph(self) -> bool:
        """Whether the model is not known to break into several graphs."""
        return not self.broken

    @property
    def graphs_run(self) -> Sequence[Captured]:
        """The graphs whose forwards have run in this step, in order, those to come too when they have run."""
        return self._ran

    @contextlib.contextmanager
    def computed_again(self, executor: Entrance, key: Key, is_stale: bool) -> Iterator[None]:
        """Inside, a graph's forward is computed again in its backward, as captured for the gradients that have come.

        Arguments:
            is_stale: whether no gradients have ever come as that graph was captured for.
        """
        with self.lock:  # calls of other threads are none that are computed again
            before, self._instead_of = self._instead_of, (executor.number, key)
            self.end_observation()
            try:
                yield
            except InfeasibleBudget as error:
                error.add_note(IN_BACKWARD)
                raise
            else:
                if is_stale and self._instead_of not in self._replaced:
                    self.active_plans.drop(self._instead_of)
            finally:
                self._instead_of = before

    def _plan_replaced(self) -> None:
        """Plans steps of several graphs anew in which calls stand for others now."""
        replaced, self._replaced = self._replaced, {}
        for graph in replaced:
            for measured in self.active_plans.drop(graph):
                calls = list(measured.calls)
                for index, call in enumerate(calls):
                    new = replaced.get((call.executor.number, call.key))
                    if new is not None:
                        new.inputs, new.outputs = call.inputs, call.outputs
                        self._enlarge([new])
                        calls[index] = new
                self.plan_calls(calls, begun=True)

    def expected_arrivals(self, captured: Captured) -> Arrivals | None:
        """How gradients came to the graph of a saved plan that is to be used; None where there is none."""
        graph = None if self.given is None else self.given.graph
        if graph is None or len(graph.segments) != 2 or captured.arrivals is None:
            return None
        known = {v.name: v.geometry for v in graph.values if v.role is Role.TANGENT and v.geometry is not None}
        shapes = {t.name: tuple(hint_of(n) for n in t.meta["val"].shape) for t in captured.joint.tangents}
        if any(shapes.get(name) != g.shape or len(g.stride) != len(g.shape) for name, g in known.items()):
            return None  # a plan of another program, which is refused when the step is planned
        return tuple(GradientLayout.of(known[n].shape, known[n].stride) if n in known else None for n in shapes)

    def run_forward(self, executor: PlannedExecutor, key: Key, loaded: Loaded, arguments: list[Any]) -> Sequence[Any]:
        """Runs a forward, and notes what a first step shows, and what a refusal later in the step has to undo."""
        captured = self.executors.graph_of(executor)
        if self._dry is not None:
            return loaded.run(0, arguments)
        if self.agreement is not None and self._instead_of is None:
            self.agreement.before_run(several=self._first is not None)
        if self._undo is not None:
            self._undo.keep(arguments[i] for i in captured.unchanged.values())
        if self._instead_of is None:
            self._ran.append(captured)
        try:
            if self.whole is not None:
                return self.whole.run(executor, key, loaded, arguments)
            results = loaded.run(0, arguments)
        except UnsupportedOperator:
            self._stopped = True
            raise
        if self._first is not None:
            self._first.note_results(results, len(captured.joint.forward_outputs))
            self._first.graph_ended(observes=self.budget_scope.encloses(self.budget_scope.device))
        return results

    def failed(self, error: BaseException) -> None:
        """Tells other ranks that a backward has failed here, which they would wait for."""
        if self.agreement is not None:
            self.agreement.tell(error)

    def _occasion(self, executor: PlannedExecutor) -> Key:
        """A key that distinguishes the calls of one graph: equal layers of a broken model share a graph, not a plan."""
        if not self.step_key:
            return ()
        return (*self.step_key, executor.forwards - self._before.get(executor.number, 0))

    @property
    def asks_always(self) -> bool:
        """Whether even a call that has an active plan is to get another one: graphs are being found."""
        return self._dry is not None or self._first is not None

    def key_of(self, executor: PlannedExecutor, arguments: Sequence[Any]) -> Key:
        """What distinguishes the shapes of a call, and which call of its graph it is."""
        captured = self.executors.graph_of(executor)
        return (*self._occasion(executor), *precision_switches(), *captured.key(arguments))

    def plan_for(self, executor: PlannedExecutor, key: Key, arguments: Sequence[Any]) -> Loaded:
        """Plans the step of a call for which there is no active plan, and returns the code of that call."""
        captured = self.executors.graph_of(executor)
        if self._dry is None and self.whole_model and self.broken:
            if self.whole is not None:
                raise SeveralGraphs
            if self._instead_of is not None:
                return self._provisional_instead(executor, captured, arguments)
            if self._first is not None or self.calls == self._entered:
                return self._provisional(executor, captured, arguments)
            # Another path than that of the first step, which is planned as one: what has run cannot be planned again.
            warnings.warn(
                _OTHER_ARRIVALS if self._known_otherwise(captured) else _OTHER_PATH, BudgetWarning, stacklevel=2
            )
        call = call_of(executor, key, captured.specialise(arguments), arguments)
        if self._dry is not None:
            return self._dry_call(call, captured, arguments)
        self._enlarge([call])
        self.plan_calls([call])
        return executor.active(key)

    def _known_otherwise(self, captured: Captured) -> bool:
        """Whether a graph is known, captured for gradients that come otherwise."""
        others = (self.executors.graph_of(e) for e in self.executors if e.keys)
        return any(o.program is captured.program and o is not captured for o in others)

    def _provisional(self, executor: PlannedExecutor, captured: Captured, arguments: Sequence[Any]) -> Loaded:
        """A plan for a graph by itself, in a step whose other graphs are not all known."""
        if self._first is None:
            self._first = FirstStep(device=self.budget_scope.device)
            if self._undo is not None:  # code between the graphs may overwrite any buffer
                self._undo.keep(self.budget_scope.persistent())
        self._first.graph_begins()
        if not self.step_key:
            self.step_key = self._signature()
        key = self.key_of(executor, arguments)
        call = call_of(executor, key, captured.specialise(arguments), arguments)
        self._first.calls.append(call)
        return self._loaded_provisionally(call, self._first)

    def _provisional_instead(self, executor: PlannedExecutor, captured: Captured, arguments: Sequence[Any]) -> Loaded:
        """A plan for a graph by itself, which stands for another capture of it in the steps that follow."""
        assert self._instead_of is not None
        call = call_of(executor, self.key_of(executor, arguments), captured.specialise(arguments), arguments)
        self._replaced[self._instead_of] = call
        return self._loaded_provisionally(call, self._latest_first)

    def _loaded_provisionally(self, call: Call, first: FirstStep | None) -> Loaded:
        with nothing_engaged():
            found = measure_step([call], self.budget_scope.persistent, self.options, self.cache, self.lookup)
            loaded = load(found.graph, provisional_schedule(found.graph), call.interfaces, call.specialised.held)
        if first is not None and len(loaded.segments) > 1 and self.budget_scope.encloses(self.budget_scope.device):
            forward, backward = loaded.segments
            loaded.segments = (forward, first.watching(backward))
        call.executor.remember(loaded)
        return loaded

    def _enlarge(self, calls: Sequence[Call]) -> None:
        """Gives the graphs of a step every implementation that may be used."""
        with nothing_engaged():
            for call in calls:
                call.specialised = self.menu.served(call.specialised, self.options, call.contents)
                if self.whole is not None:
                    self.whole.complete(call)
                call.contents = {}  # the model may end before what is known of its plans

    def plan_around(self, step: MeasuredStep, live_blocks: tuple[LiveBlock, ...]) -> PlanRecord:
        """Plans a measured step around what is in the way.

        Raises:
            InfeasibleBudget: if no plan fits.
        """
        return self._plan(step, live_blocks)

    def host_resident(self, step: MeasuredStep, record: PlanRecord) -> Iterable[torch.Tensor] | None:
        """The persistent tensors that live on the host under a plan; None where none ever does."""
        return None if self.whole is None else self.whole.host_resident(step, record)

    def forget_call(self, graph: tuple[int, Key]) -> None:
        """Forgets what whole steps know of a graph for whose shape there is no plan any more."""
        if self.whole is not None:
            self.whole.forget(graph)

    def _plan(self, step: MeasuredStep, live_blocks: tuple[LiveBlock, ...] = (), *, runs: bool = True) -> PlanRecord:
        self.options = linked(self.options, step.device, self.cache)
        options = self._options_for(step) if runs else self.options
        try:
            record = plan_step(step, options, self.budget_scope, live_blocks, self.watch, self.lookup, self.agreement)
        except InfeasibleBudget as error:
            if any(c.specialised.captured.expects_gradients_of_tensors for c in step.calls):
                error.add_note(_AS_EXPECTED)
            raise
        fidelity = record.fidelity.doubted(self._doubts)
        return replace(record, graphs=len(step.calls), breaks=self.breaks, fidelity=fidelity)

    def _plan_whole(self, step: MeasuredStep, runs: bool) -> PlanRecord:
        """A plan with the placement of the others, if there is one; else all plans are sought anew with its own."""
        assert self.whole is not None
        try:
            record = self._plan(step, runs=runs)
        except InfeasibleBudget:
            if self.whole.placement(step) is None:
                raise
            self.forget()
            record = self._plan(step, runs=runs)
        if runs:
            self.whole.settle(step, record)
        return record

    def _options_for(self, step: MeasuredStep) -> PlanOptions:
        """A share of plain is one of a training step: an evaluation that comes before the first gets what it takes."""
        if self.whole is not None and self.options.host_budget_B != 0:
            return dataclasses.replace(self.options, host_resident=self.whole.placement(step))
        share, members = self.options.budget.of_plain, self.budget_scope.members
        trains = step.trains or (members and not any(t.requires_grad for t in self.budget_scope.persistent()))
        if trains or share is None or share >= 1.0 or self.budget_scope.budget_B:
            return self.options
        return dataclasses.replace(self.options, budget=Budget(of_plain=1.0))

    def settled(self, executor: PlannedExecutor, key: Key, loaded: Loaded, arguments: Sequence[Any]) -> Loaded:
        """The code to use for a call: its active plan's, around what earlier steps left in the arena."""
        return self.active_plans.settle((executor.number, key), executor, loaded, arguments)

    def _dry_call(self, call: Call, captured: Captured, arguments: Sequence[Any]) -> Loaded:
        interface = call.interfaces[0]
        token = torch.zeros(1, dtype=torch.int64)
        specialised = call.specialised
        results = dry_results(specialised.graph, interface, arguments, specialised.held, captured.unchanged, token)
        call.outputs = tuple(identity_of(r) for r in results[: len(captured.joint.forward_outputs)])
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
        record = fit_plan(self.given, found, self.budget_scope, self.options.budget)
        return replace(record, graphs=len(found.calls), breaks=self.breaks)


def inexact(doubts: Sequence[Doubt]) -> InexactCapture:
    """The refusal of a capture whose results may differ from plain PyTorch's."""
    reasons = tuple(str(doubt) for doubt in dict.fromkeys(doubts))
    return InexactCapture(
        'results may differ from plain PyTorch\'s, and numerics="exact" was asked for. Nothing of this '
        "capture has been run. " + " ".join(f"({i}) {text}." for i, text in enumerate(reasons, 1)),
        reasons=reasons,
    )
