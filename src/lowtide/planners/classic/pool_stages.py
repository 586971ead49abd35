"""SuperNeurons as a whole, by its named stages: liveness, the unified tensor pool, recomputation, workspaces.

L. Wang et al., "SuperNeurons: dynamic GPU memory management for training deep neural networks", PPoPP 2018, arXiv
1801.04380. Of a chain of layers that produce l_f bytes in the forward and need l_b in the backward, a step takes

    nothing          sum of all l_f and all l_b
    liveness         sum of all l_f, and the last layer's l_b
    + pool           sum of l_f of layers up to k that are no checkpoints, and layer k's l_b, at the worst k
    + recomputation  the largest layer's l_f + l_b

besides what lives throughout. Workspaces take what is left, so they change the time alone. The pool sends checkpoints
ahead and keeps them until their bytes are needed, and evicts what was used least recently; recomputation goes by the
kind of layer. Every mixture of the stages that are on is tried, and the fastest plan that fits is taken: the paper's
rules say when to offload or recompute, but not which of both to prefer.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

from msgspec.structs import replace

from lowtide.ir.graph import Graph
from lowtide.ir.machine import Link, Machine
from lowtide.ir.plan import Outcome, Problem, Status
from lowtide.ir.schedule import Drop, Schedule
from lowtide.ir.simulate import simulate
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.chain.forward import forwards
from lowtide.planners.classic.itinerary import Itinerary
from lowtide.planners.classic.offload_convolutions import after_each_other, heavy_outputs, one_ahead
from lowtide.planners.classic.policy import attempt, follow
from lowtide.planners.classic.static_policy import follow_moves, haul, refuses_links
from lowtide.planners.classic.superneurons import cost_aware, largest_layer_B
from lowtide.planners.classic.tensor_cache import cached
from lowtide.planners.classic.traffic import Policy
from lowtide.planners.classic.workspaces import ALGORITHM_CLASS, fastest_that_fit, has_algorithms, saved_s, thriftiest
from lowtide.planners.reductions.stages import refuses_stages
from lowtide.planners.search import Search, conduct

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
            outcome = follow_moves(inner, watch, self.name, refusal, self._script)
        else:
            outcome = follow(inner, watch, self.name, refusal, self._script)
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
