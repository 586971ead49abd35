"""The tables of implementations: their problems are whole, rows keep their promises, and nothing is left out unseen."""

from __future__ import annotations

import functools
import itertools

import pytest
from benchmarks.implementations import implementations
from benchmarks.implementations.ablation import menus
from benchmarks.implementations.curves import CURVE_PART
from benchmarks.implementations.execution import EXECUTION_PART, broken
from benchmarks.implementations.levels import LEVEL_PART, PERCENTS, budgets_of, least_B
from benchmarks.implementations.monet_figures import PUBLISHED, GiB
from benchmarks.implementations.order import ORDER_PART, STRATEGIES, fastest, settled, thriftiest
from benchmarks.implementations.problems import MACHINES, MONET, NAMES, load
from benchmarks.implementations.rows import LEVELS, SCHEDULE_ONLY, Point, case, climb
from benchmarks.implementations.solving import SOLVING_PART, open_share
from benchmarks.implementations.vocabulary import VOCABULARY_PART
from benchmarks.parts import Effort, Part, measured, wanted
from benchmarks.results_file import MissingRow

from lowtide.ir.graph import Role
from lowtide.ir.schedule import Schedule
from lowtide.ir.simulate import simulate
from lowtide.ops.base import KINDS
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.reductions.stages import stage_program
from lowtide.planners.start import read_back

EFFORT = Effort(limit_s=2.0)


@functools.cache
def _points() -> tuple[Point, ...]:
    subject = case("vgg16", LEVELS[1])
    budgets = [(f"{p} %", subject.plain_B * p // 100) for p in (90, 80, 70)]
    return tuple(climb(subject, budgets, 2.0, lambda _: None))


@pytest.mark.parametrize("name", NAMES)
def test_problems_say_which_implementations_their_operators_have(name: str) -> None:
    graph = load(name)
    assert graph.groups == ()
    assert MACHINES[name] in graph.name
    assert all(v.geometry is not None for v in graph.values if v.role is not Role.GENERATOR)
    assert all(graph.recipes[r].args for r in graph.program)
    assert not any(r.origin.source or r.origin.text for r in graph.recipes)
    if name in MONET:
        plain_GiB = simulate(graph, keep_all_schedule(graph)).peak_B / GiB
        assert plain_GiB > 0.9 * PUBLISHED[name].plain


def test_the_u_net_takes_what_the_paper_states() -> None:
    subject = case("unet", SCHEDULE_ONLY)
    assert subject.plain_B / GiB == pytest.approx(PUBLISHED["unet"].plain, rel=0.01)


def test_rows_keep_their_promises() -> None:
    points = _points()
    assert [p.label for p in points] == ["90 %", "80 %", "70 %"]
    bounds = [p.bound_s for p in points]
    assert bounds == sorted(bounds)
    for point in points:
        assert point.overhead is not None
        assert point.gap is not None
        assert point.peak_B is not None
        assert point.floor_B <= point.peak_B <= point.budget_B
        assert point.overhead >= point.bound_overhead - 1e-6
        assert Point(**point.as_data()) == point


def test_plain_is_the_same_whatever_the_menu() -> None:
    plain, exact = (case("vgg16", menu) for menu in LEVELS[:2])
    assert (plain.plain_B, plain.plain_s) == (exact.plain_B, exact.plain_s)
    assert len(exact.graph.groups) > 0
    assert plain.graph.groups == ()


def test_the_smallest_budget_for_an_overhead_has_a_plan_and_a_proof() -> None:
    subject = case("vgg16", SCHEDULE_ONLY)
    best, proved_B = least_B(subject, 0.02, 2.0)
    assert best is not None
    assert best.overhead is not None
    assert best.overhead <= 0.02
    assert best.peak_B is not None
    assert subject.floor_B <= proved_B < best.peak_B


def test_one_after_the_other_is_a_choice_of_the_same_graph() -> None:
    subject = case("vgg16", LEVELS[1])
    graph = subject.graph
    plain = stage_program(settled(graph, {}))
    thrifty = thriftiest(graph)
    assert stage_program(settled(graph, thrifty)).keep_all(0).live_B().max() <= plain.keep_all(0).live_B().max()
    kept: Schedule = keep_all_schedule(settled(graph, {}))
    choice = fastest(graph, lambda program: read_back(program, kept), 2**40)
    assert stage_program(settled(graph, choice)).keep_all(0).time_ps <= plain.keep_all(0).time_ps


def test_tables_show_every_row() -> None:
    key = "vgg16, exact"
    rows = [p.as_data() for p in _points()]
    unplanned = rows[-1] | {"label": "10 %", "time_s": None, "peak_B": None, "status": "INFEASIBLE", "chosen": {}}
    (shares,) = LEVEL_PART.tables({key: [*rows, unplanned]})
    assert shares.count("| vgg16 | p100 | exact |") == 4
    assert "proved impossible" in shares
    stated = [(f"{gb:g} GB", 0) for gb in PUBLISHED["vgg16"].overheads]
    everywhere = {
        f"vgg16, {menu.name}": [rows[0] | {"menu": menu.name, "label": label} for label, _ in stated] for menu in LEVELS
    }
    _, budgets = LEVEL_PART.tables(everywhere)
    assert budgets.count("| vgg16 |") == len(stated)
    overheads = dict.fromkeys(STRATEGIES, 0.1)
    (order,) = ORDER_PART.tables(
        {"unet, 50 %": [{"network": "unet", "label": "50 %", "overheads": overheads, "bound": 0.05}]}
    )
    assert "| unet | 50 % | 10.00 % | 10.00 % | 10.00 % | 10.00 % | 5.00 % |" in order


def test_gaps_are_those_of_integer_programming() -> None:
    assert open_share(2.0, 1.0) == 0.5
    assert open_share(None, 1.0) is None
    row = {"what": "ours", "gb": "10", "size": "3 groups", "reached_s": [1.0, None, None, None], "last": 0.02,
           "seconds": 2.0, "overhead": 0.1, "how": "2 cores"}  # fmt: skip
    (table,) = SOLVING_PART.tables({SOLVING_PART.keys[0]: [row]})
    assert "| MONeT, 10 GB, 7 minutes | 10 | 229,431 columns | 402 s |" in table
    assert "| ours | 10 | 3 groups | 1.0 s | never | never | never | 2.00 % | 2.0 s | 10.00 % | 2 cores |" in table


def test_executed_rows_show_what_was_seen_and_what_is_broken() -> None:
    head = {"network": "unet", "menu": "exact", "alpha": 0.5, "budget_B": 10**6, "plain_B": 2 * 10**6}
    seen = {
        "predicted": 0.1, "measured": 0.12, "spread": "+1.0% .. +2.0%", "peak_B": 990_000, "observed_B": 990_000,
        "error": 0.0, "spills": 0, "result": "off by 1.0e-07", "chosen": {"loss": 1},
    }  # fmt: skip
    found = {"unet, exact": [head | seen, head | {"smallest_B": 1_500_000, "result": "no plan"}]}
    (table,) = EXECUTION_PART.tables(found)
    assert "| 10.00 % | 12.00 % | +1.0% .. +2.0% | 1.0 | 1.0 | +0.00% | 0 | off by 1.0e-07 | 1 loss |" in table
    assert "no plan below 1.5" in table
    assert broken(found) == ["unet, exact, alpha 0.5: off by 1.0e-07"]
    assert broken({"unet, reassociated": [head | seen | {"menu": "reassociated"}]}) == []


def test_vocabularies_and_curves_show_every_row() -> None:
    row = {
        "model": "GPT-2, planned", "menu": "exact", "logits_B": 4 * 10**6, "plain_B": 10**7, "floor_B": 10**6,
        "smallest_B": 2 * 10**6, "observed_B": None, "overhead": 0.5, "result": "-", "chosen": {},
    }  # fmt: skip
    (table,) = VOCABULARY_PART.tables({VOCABULARY_PART.keys[0]: [row, row | {"smallest_B": None, "overhead": None}]})
    assert "| 4.0 | 10.0 | 1.0 | 2.0 | 2.000 | 0.500 | 50.00 % | - | - | none |" in table
    assert "| none | none | none | no plan |" in table
    losses = {"float64": [1.0] * 10, "plain": [1.0] * 9 + [1.5], "planned": [1.25] + [1.0] * 9}
    curve = {
        "network": "net", "losses": losses, "weights": {"plain": 1e-7, "planned": 2e-7}, "chosen": {},
        "reassociated": 3,
    }  # fmt: skip
    steps, ends = CURVE_PART.tables({CURVE_PART.keys[0]: [curve]})
    assert steps.count("| net |") == 2
    assert "| net | 5.0e-01 | 2.5e-01 | 1.0e-07 | 2.0e-07 | none | 3 |" in ends


def test_menus_of_the_ablation_grow_to_everything() -> None:
    left_out = [set(menu.without) for menu in menus()[1:]]
    assert left_out[0] == set(KINDS) - {"in-place"}
    assert all(later < earlier for earlier, later in itertools.pairwise(left_out))
    assert left_out[-1] == set()


def test_budgets_are_shares_of_plain_and_those_of_the_paper() -> None:
    labels = [label for label, _ in budgets_of("vgg16", 100, Effort())]
    assert labels == [*(f"{p} %" for p in PERCENTS), "9.71 GB", "8.66 GB", "7.88 GB", "6.82 GB", "5.9 GB", "5.51 GB"]
    assert [label for label, _ in budgets_of("gpt2", 100, Effort())] == [f"{p} %" for p in PERCENTS]


def test_a_key_without_rows_is_an_error_and_seen() -> None:
    empty = Part("empty", ("a", "b"), lambda _, __: [], lambda _: [])
    with pytest.raises(MissingRow, match="empty, a"):
        measured(empty, "a", EFFORT)
    assert wanted(empty, ["b"], quick=False) == ["b"]
    assert wanted(empty, None, quick=True) == ["a"]
    absent = implementations.RUN.missing({"levels": {"vgg16, exact": []}})
    assert "levels: vgg16, exact" not in absent
    assert "levels: vgg16, reassociated" in absent
