"""SuperNeurons, as a whole and by its named stages: liveness, the unified tensor pool, recomputation, workspaces.

L. Wang et al., "SuperNeurons: dynamic GPU memory management for training deep neural networks", PPoPP 2018, arXiv
1801.04380. Of a chain of layers that produce l_f bytes in the forward and need l_b in the backward, a step takes

    nothing          sum of all l_f and all l_b
    liveness         sum of all l_f, and the last layer's l_b
    + pool           sum of l_f of layers up to k that are no checkpoints, and layer k's l_b, at the worst k
    + recomputation  the largest layer's l_f + l_b

besides what lives throughout. Workspaces take what is left, so they change the time alone.

Recomputation: layers that compute much are checkpoints, segments of cheap ones are rematerialised. A recipe computes
much if its operator is a convolution, a matrix product or attention: the policy goes by the kind of layer, not by its
measured time. Where paths fork and join is a checkpoint too. The pool sends checkpoints ahead and keeps them until
their bytes are needed, and evicts what was used least recently. Every mixture of the stages that are on is tried, and
the fastest plan that fits is taken: the paper's rules say when to offload or recompute, but not which of both to
prefer.

Workspaces: tensors come first, planned for the thriftiest algorithms, and convolutions' workspaces get the rest: each
takes the fastest algorithm whose bytes are free where it runs. An algorithm is chosen per operator and not per run of
it: a schedule runs one option of a group.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from msgspec.structs import replace

from lowtide._core import NEVER
from lowtide.ir.graph import Graph, Recipe
from lowtide.ir.machine import Link, Machine
from lowtide.ir.plan import Outcome, Problem, Status
from lowtide.ir.schedule import Drop, Run, Schedule
from lowtide.ir.simulate import simulate
from lowtide.ops.base import ALGORITHMS
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.chain.forward import AT_ONCE, Forward, forwards, retention_of
from lowtide.planners.classic.itinerary import Itinerary
from lowtide.planners.classic.policy import (
    HEAVY,
    AbstractPolicyPlanner,
    attempt,
    attempting,
    haul,
    offloading,
    refuses_links,
)
from lowtide.planners.classic.static_offload import after_each_other, cached, heavy_outputs, one_ahead
from lowtide.planners.classic.traffic import Policy
from lowtide.planners.implementations.choice import choose
from lowtide.planners.reductions.stages import GapNumbers, refuses_stages
from lowtide.planners.search import Search, conduct

# Of a forward half and its segments, the stages that are rebuilt one by one.
LayerByLayer = Callable[[Forward, list[list[int]]], set[int]]


@final
@dataclass(frozen=True)
class SpeedCentric(AbstractPolicyPlanner):
    """A segment is rematerialised once, as a whole, when the backward enters it. O(graph)."""

    name: ClassVar[str] = "superneurons-speed"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        _try(search, lambda *_: set())


@final
@dataclass(frozen=True)
class MemoryCentric(AbstractPolicyPlanner):
    """For each need a value is rematerialised from its segment's checkpoint and dropped again. O(graph)."""

    name: ClassVar[str] = "superneurons-memory"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        _try(search, lambda _, found: {t for segment in found for t in segment})


@final
@dataclass(frozen=True)
class CostAware(AbstractPolicyPlanner):
    """Speed-centric in segments that fit below the largest layer's bytes, else memory-centric. O(graph)."""

    name: ClassVar[str] = "superneurons-cost"

    def attempts(self, search: Search) -> None:
        """FEASIBLE with its one plan, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        _try(search, _too_large)


def _try(search: Search, layer_by_layer: LayerByLayer) -> None:
    attempt(search, _retention(search, forwards(search.program), layer_by_layer))


def _retention(search: Search, halves: tuple[Forward, ...], layer_by_layer: LayerByLayer) -> GapNumbers:
    when: dict[int, int] = {}
    for half in halves:
        found = segments(half)
        one_by_one = layer_by_layer(half, found)
        for t in (t for segment in found for t in segment):
            when.update(dict.fromkeys(half.outputs[t], NEVER if t in one_by_one else AT_ONCE))
    return retention_of(halves, when, search.program)


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


def cost_aware(search: Search, halves: tuple[Forward, ...]) -> GapNumbers:
    """The retention of `CostAware`."""
    return _retention(search, halves, _too_large)


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


LIVENESS, POOL, RECOMPUTATION, WORKSPACES = "liveness", "pool", "recomputation", "workspaces"
STAGES = (LIVENESS, POOL, RECOMPUTATION, WORKSPACES)
_EQUAL = 1e-6  # relative


@dataclass(frozen=True, slots=True)
class StagePeaks:
    """Device bytes that each stage can live in, with those before it, persistent values included.

    Arguments:
        everything_B: nothing is freed.
        pool_B: checkpoints are on the device only where something reads them.
        cache_B: whatever does not run is on the host, as a cache that is full all the time would have it.
        largest_layer_B: what the paper states for recomputation: the largest layer by itself.
    """

    everything_B: int
    liveness_B: int
    pool_B: int
    cache_B: int
    recomputation_B: int
    largest_layer_B: int


@final
@dataclass(frozen=True)
class SuperNeurons(AbstractPlanner):
    """The paper's planner with some of its stages. O(steps * values evicted at once).

    Arguments:
        stages: any of `STAGES`; the pool and recomputation build on liveness.
    """

    stages: tuple[str, ...] = STAGES
    name: ClassVar[str] = "superneurons"

    def refuses(self, problem: Problem) -> str | None:
        """Unknown stages, problems without links for the pool, and graphs that have no stage program."""
        if unknown := [s for s in self.stages if s not in STAGES]:
            return f"there is no stage {unknown[0]!r}; its stages are {', '.join(STAGES)}"
        if LIVENESS not in self.stages and {POOL, RECOMPUTATION} & set(self.stages):
            return "the pool and recomputation build on liveness, which is off"
        return refuses_links(problem) if POOL in self.stages else refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE with the fastest of its plans, OPTIMAL where everything fits, else UNSOLVED or INFEASIBLE."""
        refusal = self.refuses(problem)
        spaces = WORKSPACES in self.stages and refusal is None
        inner = replace(problem, graph=thriftiest(problem.graph)) if spaces else problem
        if LIVENESS not in self.stages:
            outcome = conduct(inner, watch, self.name, refusal, _everything)
        elif POOL in self.stages:
            outcome = conduct(inner, watch, self.name, refusal, lambda s: offloading(s, self.name, self._script))
        else:
            outcome = conduct(inner, watch, self.name, refusal, lambda s: attempting(s, self.name, self._script))
        return _with_workspaces(problem, inner.graph, outcome) if spaces else outcome

    def _script(self, search: Search) -> None:
        if POOL not in self.stages:
            if RECOMPUTATION in self.stages:
                attempt(search, cost_aware(search, forwards(search.program)))
            return
        for schedule in self._bases(search):
            haul(search, schedule, _pool)
            haul(search, schedule, _pool_on_demand)

    def _bases(self, search: Search) -> Iterator[Schedule]:
        program = search.program
        yield program.lift(program.keep_all(0))
        if RECOMPUTATION in self.stages:
            state = program.keep_all(0)
            if state.assign(cost_aware(search, forwards(program))):
                yield program.lift(state)


def stage_peaks(graph: Graph) -> StagePeaks:
    """What each stage's policy lives in on a graph, one after the other.

    Raises:
        PlanError: if static policies do not know such graphs.

    O(graph).
    """
    problem = Problem(graph, 0, machine=_ANY_LINK, host_budget_B=None)
    measured: list[int] = []

    def measure(search: Search) -> None:
        program = search.program
        halves = forwards(program)
        kept = program.lift(program.keep_all(0))
        state = program.keep_all(0)
        possible = state.assign(cost_aware(search, halves))
        rebuilt = program.lift(state) if possible else kept
        measured.extend((
            simulate(graph, _without_drops(kept)).peak_B,
            simulate(graph, kept).peak_B,
            haul(search, kept, one_ahead),
            haul(search, kept, cached),
            haul(search, rebuilt, one_ahead),
            graph.persistent_B + max((largest_layer_B(half) for half in halves), default=0),
        ))  # fmt: skip

    conduct(problem, None, SuperNeurons.name, refuses_links(problem), measure)
    return StagePeaks(*measured)


_ANY_LINK = Machine("any", links=(Link("device", "host", "to_host", 1e10), Link("host", "device", "from_host", 1e10)))


def _pool(trip: Itinerary) -> Policy:
    """Checkpoints are sent ahead, freed on demand, and prefetched one ahead; a full device evicts the rest."""
    policy = one_ahead(trip)
    return Policy(policy.sent, policy.ahead, lazy=True, cache=True)


def _pool_on_demand(trip: Itinerary) -> Policy:
    """Nothing is sent before the device is full; checkpoints that were evicted are prefetched one ahead."""
    sent = [v for v in heavy_outputs(trip) if v in trip.crossing]
    return Policy(ahead=after_each_other(trip, sent), cache=True)


def _everything(search: Search) -> None:
    """Offers the plan that frees nothing."""
    program = search.program
    schedule = _without_drops(program.lift(program.keep_all(0)))
    search.smallest_B = search.offer_schedule(schedule, program.time_ps)


def _without_drops(schedule: Schedule) -> Schedule:
    return Schedule(tuple(s for s in schedule.steps if not isinstance(s, Drop)))


def _with_workspaces(problem: Problem, thrifty: Graph, outcome: Outcome) -> Outcome:
    """The outcome with the fastest algorithms that fit, and a bound for any of them."""
    if outcome.schedule is None or not has_algorithms(problem.graph):
        return outcome
    schedule = fastest_that_fit(problem.graph, outcome.schedule, problem.budget_B)
    time_s = simulate(problem.graph, schedule, problem.machine).time_s
    bound_s = outcome.bound_s - saved_s(thrifty)
    proved = time_s <= bound_s * (1.0 + _EQUAL)
    status = outcome.status if outcome.status is Status.INTERRUPTED else Status.FEASIBLE
    return replace(
        outcome,
        schedule=schedule,
        status=Status.OPTIMAL if proved else status,
        bound_s=bound_s,
        bound_class=ALGORITHM_CLASS,
    )


ALGORITHM_CLASS = "any recomputation; any offload; any algorithm per convolution"


def thriftiest(graph: Graph) -> Graph:
    """The graph whose program runs, of each convolution's algorithms, the one that allocates least. O(graph)."""
    choice = {}
    for g, candidates in _algorithms(graph):
        choice[g] = min(candidates, key=lambda k: (candidates[k].trace.peak_B, candidates[k].time_s, k))
    return choose(graph, choice)


def fastest_that_fit(graph: Graph, schedule: Schedule, budget_B: int) -> Schedule:
    """The schedule with faster algorithms where each of their runs has the bytes.

    Arguments:
        graph: with the algorithms as groups.
        schedule: within the budget; of any option of each group.

    O(steps * algorithms).
    """
    instants = simulate(graph, schedule).instants
    before_B: dict[int, int] = {}  # recipe -> most bytes there when it begins
    for step, instant in zip(schedule.steps, instants, strict=True):
        if isinstance(step, Run):
            before_B[step.recipe] = max(before_B.get(step.recipe, 0), instant.live_before_B)
    instead: dict[int, int] = {}
    for _, candidates in _algorithms(graph):
        ran = next((r.id for r in candidates.values() if r.id in before_B), None)
        if ran is not None:
            fit = [r for r in candidates.values() if r.id == ran or before_B[ran] + r.trace.peak_B <= budget_B]
            instead[ran] = min(fit, key=lambda r: (r.time_s, r.id != ran)).id
    steps = (
        replace(s, recipe=instead[s.recipe]) if isinstance(s, Run) and s.recipe in instead else s
        for s in schedule.steps
    )
    return Schedule(tuple(steps))


def has_algorithms(graph: Graph) -> bool:
    """Whether some operator has several algorithms to choose from. O(graph)."""
    return next(_algorithms(graph), None) is not None


def saved_s(graph: Graph) -> float:
    """Seconds that the fastest algorithms save over those that the program runs. O(graph)."""
    return sum(
        candidates[0].time_s - min(r.time_s for r in candidates.values()) for _, candidates in _algorithms(graph)
    )


def _algorithms(graph: Graph) -> Iterator[tuple[int, dict[int, Recipe]]]:
    """Groups of algorithms, and the options that are one recipe in the place of one recipe."""
    for g, group in enumerate(graph.groups):
        if group.kind != ALGORITHMS or len(group.options[0].recipes) != 1:
            continue
        own = graph.recipes[group.options[0].recipes[0]]
        candidates = {k: graph.recipes[o.recipes[0]] for k, o in enumerate(group.options) if len(o.recipes) == 1}
        alike = {k: r for k, r in candidates.items() if r.outputs == own.outputs and r.read_values == own.read_values}
        if len(alike) > 1:
            yield g, alike
