"""Updates on the host: the same values, fewer bytes over the link, proved legal."""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.housing import housed, movable_values
from lowtide.ir.plan import Outcome, Problem
from lowtide.ir.schedule import HOST_ENGINE, Run
from lowtide.planners.offload.host_updates import host_twins, update_on_the_host
from lowtide.planners.offload.transfers import measured
from lowtide.planners.portfolio import Portfolio
from tests.planners.offloading import linked
from tests.planners.tape import chain
from tests.planners.training import with_updates

RATE_Bps = 1e9


def step_graph(time_s: float, graph: Graph | None = None) -> Graph:
    """A step whose updates may run on the host as well, in so many seconds each."""
    graph = with_updates(chain(12), states=2) if graph is None else graph
    updates = [graph.recipes[r] for r in graph.program if graph.recipes[r].consumes]
    first = len(graph.recipes)
    twins = (replace(u, id=first + i, engine=HOST_ENGINE, time_s=time_s) for i, u in enumerate(updates))
    return replace(graph, recipes=(*graph.recipes, *twins))


def solved(graph: Graph) -> tuple[Problem, Outcome]:
    """A plan in little more than what is needed at the least."""
    host_resident = movable_values(graph)
    problem = Problem(graph, 1, work=2_000, machine=linked(RATE_Bps), host_budget_B=None, host_resident=host_resident)
    least_B = Portfolio().solve(problem).smallest_B
    assert least_B is not None
    problem = replace(problem, budget_B=least_B + least_B // 8)
    return problem, Portfolio().solve(problem)


def test_updates_go_where_the_state_lives() -> None:
    graph = step_graph(1e-6)
    problem, plain = solved(graph)
    assert plain.schedule is not None
    found = update_on_the_host(problem, plain)
    assert found.schedule is not None
    there = housed(graph, found.hosted)
    check(there, found.schedule, problem.budget_B)
    before, after = (measured(there, o.schedule, problem.machine) for o in (plain, found))
    assert after.time_s < before.time_s
    assert after.fetched_B < before.fetched_B
    assert found.bound_s <= plain.bound_s
    assert found.stats["host_updates"] <= len(host_twins(graph))


def test_a_slow_host_is_left_alone() -> None:
    graph = step_graph(1.0)
    problem, plain = solved(graph)
    found = update_on_the_host(problem, plain)
    assert found.schedule == plain.schedule
    engines = {graph.recipes[s.recipe].engine for s in found.schedule.steps if isinstance(s, Run)}
    assert engines == {"compute"}


def test_without_twins_nothing_changes() -> None:
    graph = with_updates(chain(4))
    problem, plain = solved(graph)
    assert update_on_the_host(problem, plain) == plain


def test_the_smallest_plan_updates_there() -> None:
    plain = with_updates(chain(12, size_B=16), states=12)  # an update takes more than any operator
    least_B = []
    for graph in (plain, step_graph(1e-6, plain)):
        problem = Problem(graph, 1, work=2_000, machine=linked(RATE_Bps), host_budget_B=None)
        found = Portfolio().solve(problem)
        assert found.smallest is not None
        assert found.smallest_B is not None
        check(housed(graph, found.hosted), found.smallest, found.smallest_B)
        least_B.append(found.smallest_B)
    assert least_B[1] < least_B[0]
    assert found.stats["host_updates"] == len(host_twins(graph))
    assert found.floor_B <= least_B[1]
