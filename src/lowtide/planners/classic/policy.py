"""What the classical methods share: where not everything fits, their plans are tried, and the best one is taken.

Policies that offload values are carried out by one walk (`traffic.py`), and the simulator scores them.

Units: `_B` bytes.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable

from lowtide._core import Retention
from lowtide.ir.plan import Problem
from lowtide.ir.schedule import HOST, Fetch, Schedule, Send
from lowtide.ir.simulate import simulate
from lowtide.planners.bounds.classes import OFFLOAD_CLASS
from lowtide.planners.bounds.floors import working_set
from lowtide.planners.classic.itinerary import Itinerary, itinerary, refuses_offload
from lowtide.planners.classic.traffic import NoCapacity, Policy, carried, links_of
from lowtide.planners.keep_all import beyond_keep_all
from lowtide.planners.reductions.stages import GapNumbers, refuses_stages
from lowtide.planners.search import AbstractSearchPlanner, Search

HEAVY = re.compile(r"conv(?!ert)|attention|(^|\.|_)(mm|bmm|addmm|baddbmm|matmul|linear|dense)(\.|$|_)")
"""Operators that compute much, by their names: convolutions, matrix products, attention."""

Plan = Callable[[Itinerary], Policy]


def refuses_links(problem: Problem) -> str | None:
    """Says why a static policy cannot offload the problem's values, or None if it can."""
    if not problem.can_move or problem.machine is None:
        return "it offloads values to the host, and the problem has no links or no host bytes"
    if links_of(problem.machine) is None:
        return f"machine {problem.machine.name!r} has no link to {HOST!r}, or none back"
    return refuses_offload(problem.graph) or refuses_stages(problem.graph)


class AbstractPolicyPlanner(AbstractSearchPlanner):
    """A planner by rules that know little of budgets: where not everything fits, its plans are tried (`attempts`).

    The outcome is the fastest plan that fits; without one, `smallest_B` is the least budget that one of them meets.
    """

    def script(self, search: Search) -> None:
        """Everything kept, else what the rules say."""
        attempting(search, self.name, self.attempts)

    @abc.abstractmethod
    def attempts(self, search: Search) -> None:
        """Calls `attempt` for each of its plans."""


class AbstractOffloadPlanner(AbstractSearchPlanner):
    """The same with plans that offload values: `attempts` calls `haul` for each."""

    def refuses(self, problem: Problem) -> str | None:
        """Problems without links, bundles, and graphs that have no stage program."""
        return refuses_links(problem)

    def script(self, search: Search) -> None:
        """Everything kept, else what the rules say."""
        offloading(search, self.name, self.attempts)

    @abc.abstractmethod
    def attempts(self, search: Search) -> None:
        """Calls `haul` for each of its plans."""


def attempting(search: Search, name: str, attempts: Callable[[Search], None]) -> None:
    """Runs rules where not everything fits.

    Arguments:
        name: of the planner.
        attempts: calls `attempt` for each plan.
    """
    beyond_keep_all(search, (name, lambda s: _from_keep_all(s, attempts)))


def offloading(search: Search, name: str, attempts: Callable[[Search], None]) -> None:
    """Runs rules that offload values where not everything fits.

    Arguments:
        name: of the planner.
        attempts: calls `haul` for each plan.
    """
    search.bound_class = search.floor_class = OFFLOAD_CLASS
    beyond_keep_all(search, (name, lambda s: _from_keep_all(s, attempts)), floor=_find_floor)


def _from_keep_all(search: Search, attempts: Callable[[Search], None]) -> None:
    search.smallest_B = search.stats["keep_all_peak_B"]
    attempts(search)


def _find_floor(search: Search) -> None:
    floor = working_set(search.problem.graph)
    search.floor_B, search.floor_recipes = floor.floor_B, floor.recipes
    search.proved_impossible = floor.floor_B > search.problem.budget_B


def haul(search: Search, schedule: Schedule, plan: Plan) -> int:
    """Offers what a policy makes of a schedule without copies; counts as one unit of work.

    Arguments:
        schedule: of the search's graph, of any peak.
        plan: the policy for it.

    Returns: device bytes that the policy can live in.
    """
    problem, machine = search.problem, search.problem.machine
    assert machine is not None, "policies that offload have refused problems without links"
    trip = itinerary(search.program, schedule)
    policy = plan(trip)
    search.work += 1
    least_B = least_peak_B(trip, policy, problem)
    note_peak(search, least_B)
    if least_B <= problem.budget_B:
        try:
            found = carried(trip, policy, machine, problem.budget_B, problem.host_budget_B)
        except NoCapacity:  # of the host's bytes
            search.stats["host_was_full"] = True
        else:
            time_s = simulate(problem.graph, found, machine).time_s
            before_ps = search.time_ps
            search.offer_schedule(found, round(time_s * 1e12))
            if search.time_ps != before_ps:
                search.stats |= moved_B(search, found)
    search.clock.tick()
    return least_B


def least_peak_B(trip: Itinerary, policy: Policy, problem: Problem) -> int:
    """The least device bytes in which a policy can live, if everything fits on the host. O(steps)."""
    assert problem.machine is not None
    return simulate(trip.graph, carried(trip, policy, problem.machine, None)).peak_B


def moved_B(search: Search, schedule: Schedule) -> dict[str, int]:
    """Bytes that a schedule sends and fetches, for the outcome's statistics."""
    values = search.problem.graph.values
    sent_B = sum(values[s.value].size_B for s in schedule.steps if isinstance(s, Send))
    fetched_B = sum(values[s.value].size_B for s in schedule.steps if isinstance(s, Fetch))
    return {"sent_B": sent_B, "fetched_B": fetched_B}


def attempt(search: Search, retention: GapNumbers) -> Retention | None:
    """Tries one plan: offers it, notes its peak, counts it as one unit of work.

    Returns: its state; None if its recomputations are impossible or too many.
    """
    search.work += 1
    state = search.program.keep_all(search.budget_B)
    possible = state.assign(retention)
    if possible:
        search.offer(state)
        note_peak(search, state.peak_B + search.program.reserve_B)
    search.clock.tick()
    return state if possible else None


def note_peak(search: Search, peak_B: int) -> None:
    """Notes a budget that some plan meets."""
    search.smallest_B = peak_B if search.smallest_B is None else min(search.smallest_B, peak_B)
