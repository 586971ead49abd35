"""Schedule and implementations planned together: never worse than the schedule alone, and what is told of it."""

from __future__ import annotations

import functools

import pytest
from msgspec.structs import replace

from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import Outcome, Problem, Status
from lowtide.ir.schedule import Run
from lowtide.ir.simulate import simulate
from lowtide.planners.bounds.classes import ANY_IMPLEMENTATION
from lowtide.planners.first_plan import FirstPlan
from lowtide.planners.frontier import trace
from lowtide.planners.implementations.candidates import all_candidates
from lowtide.planners.implementations.choice import choose, chosen_options
from lowtide.planners.implementations.dominance import better_options, exact_only, reduced, thrifty
from lowtide.planners.implementations.menu import restricted
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.reductions.stages import stage_program
from lowtide.planners.smallest import smallest_budget
from tests.planners.brute_force import Exhaustive
from tests.planners.menus import MENUS, Menu, every_choice, random_menu, with_backwards
from tests.planners.tape import chain, resnet

WORK = 20_000


@functools.cache
def graph_of(name: str) -> Graph:
    return MENUS[name]()


def keep_all_B(graph: Graph) -> int:
    return stage_program(graph).keep_all(0).peak_B


def plan(graph: Graph, budget_B: int) -> Outcome:
    outcome = Portfolio().solve(Problem(graph, budget_B, work=WORK))
    if outcome.schedule is not None:
        check(graph, outcome.schedule, budget_B)
    return outcome


def time_s(graph: Graph, outcome: Outcome) -> float:
    return float("inf") if outcome.schedule is None else simulate(graph, outcome.schedule).time_s


def chosen(graph: Graph, outcome: Outcome) -> dict[int, int]:
    assert outcome.schedule is not None
    ran = [s.recipe for s in outcome.schedule.steps if isinstance(s, Run)]
    return chosen_options(graph, ran)


@pytest.mark.parametrize("percent", [75, 55])
@pytest.mark.parametrize("name", MENUS)
def test_choosing_never_costs_time(name: str, percent: int) -> None:
    graph = graph_of(name)
    budget_B = keep_all_B(graph) * percent // 100
    alone, joint = plan(choose_first(graph), budget_B), plan(graph, budget_B)
    assert time_s(graph, joint) <= time_s(graph, alone) * (1 + 0.02)  # short annealing runs from elsewhere
    assert joint.bound_s <= time_s(graph, alone)
    assert ANY_IMPLEMENTATION in joint.bound_class


def choose_first(graph: Graph) -> Graph:
    """The graph without anything but the program's own options."""
    first = tuple(replace(g, options=g.options[:1]) for g in graph.groups)
    others = {r for g in graph.groups for o in g.options[1:] for r in o.recipes}
    assert min(others) > max(graph.program)
    used = {v for r in graph.recipes if r.id not in others for v in r.outputs}
    values = tuple(v for v in graph.values if v.id in used or v.arrives is not None)
    return replace(graph, values=values, recipes=tuple(r for r in graph.recipes if r.id not in others), groups=first)


def test_jointly_is_faster_than_one_after_the_other() -> None:
    graph = with_backwards(resnet((2, 2, 2, 2)))
    budget_B = keep_all_B(graph) * 45 // 100
    joint = time_s(graph, plan(graph, budget_B))
    implementations_first = choose(graph, thrifty(all_candidates(graph)))
    after = time_s(graph, plan(replace(implementations_first, groups=()), budget_B))
    alone = time_s(graph, plan(choose_first(graph), budget_B))
    assert joint < 0.99 * after
    assert joint < 0.995 * alone


@pytest.mark.parametrize("seed", [6, 13, 20, 32, 51, 58])
def test_plans_and_bounds_enclose_the_best_of_all_choices(seed: int) -> None:
    graph = random_menu(seed, 5 + seed % 4, 1 + seed % 3)
    for percent in (100, 80, 70):
        budget_B = keep_all_B(graph) * percent // 100
        times = [Exhaustive(choose(graph, c), budget_B).least_time_s() for c in every_choice(graph)]
        best_s = min((t for t in times if t is not None), default=None)
        outcome = plan(graph, budget_B)
        if "program order" not in outcome.bound_class:
            continue
        if best_s is None:
            assert outcome.schedule is None
            continue
        assert outcome.status is not Status.INFEASIBLE
        assert outcome.bound_s <= best_s + 1e-12
        assert time_s(graph, outcome) >= best_s - 1e-12


def with_other_bits(graph: Graph) -> Graph:
    """Every second group's other options are reassociated."""
    return replace(
        graph,
        groups=tuple(
            replace(
                g, options=(g.options[0], *(replace(o, numerics=Numerics.REASSOCIATED) for o in g.options[1:]))
            ) if k % 2 else g
            for k, g in enumerate(graph.groups)
        ),
    )  # fmt: skip


@pytest.mark.parametrize(("name", "percent"), [("resnet menu", 60), ("unet menu", 45)])
def test_a_larger_menu_does_not_end_slower(name: str, percent: int) -> None:
    graph = with_other_bits(graph_of(name))
    budget_B = keep_all_B(graph) * percent // 100
    exact = plan(restricted(graph, Numerics.EXACT), budget_B)
    assert time_s(graph, plan(graph, budget_B)) <= time_s(restricted(graph, Numerics.EXACT), exact) * (1 + 1e-9)


def test_among_exact_options_nothing_else_is_settled_on() -> None:
    graph = with_other_bits(graph_of("resnet menu"))
    candidates = exact_only(all_candidates(graph))
    assert set(candidates.options) == {g for g in range(len(graph.groups)) if g % 2 == 0}
    assert set(thrifty(candidates)) <= set(candidates.options)
    assert {g for g, _ in better_options(candidates)} <= set(candidates.options)
    assert set(reduced(candidates)[0].options) <= set(candidates.options)


def test_where_everything_fits_the_fastest_options_run() -> None:
    menu = Menu(chain(4))
    recipe = menu.recipes[menu.graph.program[1]]
    fast = menu.recipe(recipe, recipe.read_values, recipe.outputs, recipe.time_s / 2)
    slow = menu.recipe(recipe, recipe.read_values, recipe.outputs, recipe.time_s * 2)
    menu.group([recipe.id], [slow], [fast])
    graph = menu.finish()
    outcome = plan(graph, 2 * keep_all_B(graph))
    assert outcome.status is Status.OPTIMAL
    assert chosen(graph, outcome) == {0: 2}
    assert outcome.stats["chosen"] == {"group 0": "option 2"}


@pytest.mark.parametrize("name", MENUS)
def test_an_earlier_plan_is_begun_from_with_its_choice(name: str) -> None:
    graph = graph_of(name)
    picked = {g: len(group.options) - 1 for g, group in enumerate(graph.groups)}
    narrow = replace(choose(graph, picked), groups=())
    budget_B = keep_all_B(narrow) * 3 // 4
    first = Portfolio().solve(Problem(narrow, budget_B, work=WORK))
    assert first.schedule is not None
    assert chosen(graph, first) == picked
    again = Portfolio().solve(Problem(graph, budget_B, work=WORK, start=first.schedule, time_limit_s=0.0))
    assert again.schedule is not None
    check(graph, again.schedule, budget_B)
    assert time_s(graph, again) <= time_s(graph, first)


def test_the_smallest_budget_is_one_and_no_larger_than_that_of_the_schedule_alone() -> None:
    for name in ("gpt menu", "unet menu"):
        graph = graph_of(name)
        smallest_B, alone_B = smallest_budget(Problem(graph, 0)), smallest_budget(Problem(choose_first(graph), 0))
        assert smallest_B is not None
        assert alone_B is not None
        assert smallest_B <= alone_B
        assert plan(graph, smallest_B).schedule is not None
        first = FirstPlan().solve(Problem(graph, smallest_B))
        assert first.schedule is not None
        check(graph, first.schedule, smallest_B)


def test_a_frontier_of_choices_is_in_order_and_below_that_of_the_schedule_alone() -> None:
    graph = graph_of("gpt menu")
    record, alone = trace(graph, points=4, work=WORK), trace(choose_first(graph), points=4, work=WORK)
    assert ANY_IMPLEMENTATION in record.bound_class
    assert all(p.gap is not None and p.gap >= -1e-6 for p in record.planned)
    assert record.smallest_B is not None
    assert alone.smallest_B is not None
    assert record.smallest_B <= alone.smallest_B


def test_a_gradient_in_two_parts_stands_for_one_in_one() -> None:
    menu = Menu(chain(3))
    back = next(menu.recipes[r] for r in menu.graph.program if len(menu.recipes[r].outputs) == 2)
    gradient, value, weight = back.read_values
    half_s = back.time_s / 2
    of_weight = menu.recipe(back, [gradient, value], back.outputs[1:], half_s)
    of_value = menu.recipe(back, [gradient, weight], back.outputs[:1], half_s)
    menu.group([back.id], [of_weight, of_value])
    candidates = all_candidates(menu.finish())
    assert better_options(candidates) == {(0, 0): 1}
    fewer, settled = reduced(candidates)
    assert settled == {0: 1}
    assert fewer.least_ps == candidates.least_ps
    assert back.id not in {w.recipe for w in fewer.candidates}
