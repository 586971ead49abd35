"""Bounds from several cuts at once: never above the true optimum, and as strong as the model with nothing left out."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from lowtide.ir.graph import Graph, Role
from lowtide.planners.bounds.cut_model import CutModel, CutSolution, stage_cuts
from lowtide.planners.bounds.cut_points import Need, Recomputation, Scene, stage_scene
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.bounds.milp import Effort
from lowtide.planners.implementations.candidates import ALWAYS
from lowtide.planners.reductions.stages import StageProgram, stage_program
from tests.planners.brute_force import Exhaustive
from tests.planners.tape import Tape, random_graph

EXACT = Effort(nodes=100_000)
PAGE_B = 8192


def extra_s(program: StageProgram, budget_B: int) -> float | None:
    """Seconds of recomputations in the best plan; None if nothing fits."""
    best_s = Exhaustive(program.graph, budget_B).least_time_s()
    return None if best_s is None else best_s - program.time_ps * 1e-12


def bound_s(program: StageProgram, solution: CutSolution) -> float:
    """Proved seconds of recomputations."""
    return float("inf") if solution.impossible else (solution.bound_ps - program.time_ps) * 1e-12


def tight_budget_B(program: StageProgram, alpha: float) -> int:
    floor_B = op_floor(program).floor_B
    return int(floor_B + alpha * (program.keep_all(0).peak_B - floor_B))


def everything(program: StageProgram, stages: Sequence[int]) -> list[Scene]:
    """Scenes that leave nothing out: every value made so far may be there, every recipe may be recomputed."""
    scenes, points = [], sorted(set(stages))
    for t, until in zip(points, [*points[1:], len(program.stages)], strict=True):
        scene = stage_scene(program, t)
        read = {v for s in range(t + 1, until) for v in program.read_ids[s] if program.producer[v] < t}
        recipes = (r for r in range(t) if program.stages[r].recompute_through > t and program.stages[r].outputs)
        scenes.append(Scene(
            values=tuple(v for v, r in enumerate(program.producer) if r < t and v not in scene.there),
            needs=tuple(Need(v) for v in sorted(read - scene.there)),
            all_needs=scene.all_needs,
            recomputations=tuple(
                Recomputation(
                    r,
                    r,
                    ALWAYS,
                    tuple(v for v, t in enumerate(program.producer) if t == r),
                    program.read_ids[r],
                    program.stages[r].recompute_ps,
                )
                for r in recipes
            ),
            free_B=scene.free_B,
            there=scene.there,
        ))  # fmt: skip
    return scenes


@pytest.mark.parametrize("seed", [*range(100, 125), 180, 196, 255, 259, 333, 339, 373])
def test_no_plan_of_a_tiny_graph_is_faster_than_the_bound(seed: int) -> None:
    dice = random.Random(seed)
    graph = random_graph(seed, 7, dice.choice((1, 2)), mirrored=dice.random() < 0.5)
    program = stage_program(graph)
    budget_B = tight_budget_B(program, dice.choice((0.1, 0.4)))
    extra = extra_s(program, budget_B)
    for count in (2, 3, 4):
        stages = dice.sample(range(1, len(program.stages)), count)
        if extra is not None:
            assert bound_s(program, stage_cuts(program, stages, budget_B).solve(budget_B, EXACT)) <= extra + 1e-9


@pytest.mark.parametrize("seed", [*range(40), 5023, 5097, 5332, 5342])
def test_what_a_model_leaves_out_changes_no_bound(seed: int) -> None:
    dice = random.Random(seed * 7 + 1)
    graph = random_graph(seed, dice.randint(15, 30), dice.choice((1, 2)), mirrored=dice.random() < 0.5)
    program = stage_program(graph)
    stages = {alpha: dice.sample(range(1, len(program.stages)), dice.randint(1, 4)) for alpha in (0.05, 0.3)}
    for alpha, chosen in stages.items():
        budget_B = tight_budget_B(program, alpha)
        small = stage_cuts(program, chosen, budget_B)
        large = CutModel(everything(program, chosen), program.size_B, program.time_ps)
        assert small.columns <= large.columns
        least_s, most_s = (bound_s(program, model.solve(budget_B, EXACT)) for model in (small, large))
        assert least_s == pytest.approx(most_s, rel=1e-5, abs=1e-9)


def crowded(steps: Sequence[tuple[str, tuple[str, ...], int, int]]) -> Graph:
    """A straight program: per step its output, what it reads, pages of output, pages besides it; 5 ms for f, else 1."""
    tape = Tape("crowded")
    tape.segment("s0")
    named = {"x": tape.given(8, persistent=True)}
    for name, reads, pages, extra in steps:
        named[name] = tape.value(pages * PAGE_B)
        time_s = 5e-3 if name.startswith("f") else 1e-3
        tape.recipe(name, tuple(named[r] for r in reads), (named[name],), time_s, extra * PAGE_B)
        if name.startswith("end"):
            tape.leave(named[name], 0, Role.OUTPUT)
    return tape.graph()


def test_a_value_resident_at_one_cut_may_be_recomputed_behind_it() -> None:
    """The first cut reads the large value; before the second it goes, and what it is made from is kept instead."""
    graph = crowded([
        ("f0", ("x",), 1, 0), ("large", ("f0",), 8, 0), ("wide", ("large",), 8, 0), ("end0", ("x",), 0, 20),
        ("end1", ("wide",), 0, 0),
    ])  # fmt: skip
    program, budget_B = stage_program(graph), 22 * PAGE_B
    extra = extra_s(program, budget_B)
    assert extra == pytest.approx(2e-3)
    found = stage_cuts(program, (3, 4), budget_B).solve(budget_B, EXACT)
    assert bound_s(program, found) == pytest.approx(2e-3, rel=1e-5)


def test_a_value_is_kept_where_its_readers_results_would_cost_more() -> None:
    """Between the cuts `f0` is read; behind them `f1` comes back in any case, and `mixed` is made of both."""
    graph = crowded([
        ("f0", ("x",), 1, 0), ("f1", ("x",), 1, 0), ("mixed", ("f0", "f1"), 1, 0), ("end0", ("x",), 0, 5),
        ("end1", ("f0",), 0, 0), ("end2", ("x",), 0, 5), ("end3", ("f1", "mixed"), 0, 0),
    ])  # fmt: skip
    program, budget_B = stage_program(graph), 6 * PAGE_B + 8
    extra = extra_s(program, budget_B)
    assert extra == pytest.approx(6e-3)
    found = stage_cuts(program, (4, 6), budget_B).solve(budget_B, EXACT)
    assert bound_s(program, found) == pytest.approx(6e-3, rel=1e-5)
