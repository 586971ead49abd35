"""Layers that are alike are found; layers that differ are told apart; mirrored moves keep the search exact."""

from __future__ import annotations

from collections import Counter

from lowtide._core import Annealer
from lowtide.planners.reductions.stages import StageProgram, stage_program
from lowtide.planners.reductions.twins import ALONE, outputs_of, stage_colours, twin_gaps
from tests.planners.tape import gpt, random_graph, unet


def names(program: StageProgram) -> list[str]:
    recipes = program.graph.recipes
    return [recipes[s.recipe].op if s.recipe >= 0 else "" for s in program.stages]


def test_the_same_operator_of_every_layer_has_one_colour() -> None:
    program = stage_program(gpt(6))
    colours = Counter(
        (name, colour) for name, colour in zip(names(program), stage_colours(program), strict=True) if name
    )
    assert max(count for (name, _), count in colours.items() if name == "gelu") == 6
    assert max(count for (name, _), count in colours.items() if name == "attention") >= 4  # the ends differ


def test_operators_that_differ_in_bytes_are_no_twins() -> None:
    program = stage_program(unet(3))
    colours = stage_colours(program)
    outputs = outputs_of(program)
    seen: dict[int, tuple[int, ...]] = {}
    for t, colour in enumerate(colours):
        sizes = tuple(program.size_B[v] for v in outputs[t])
        assert seen.setdefault(colour, sizes) == sizes


def test_twins_are_the_same_gap_of_like_values() -> None:
    program = stage_program(gpt(6))
    classes, core = twin_gaps(program), program.core
    assert len(classes) == len(core.gap_value)
    assert Counter(classes.tolist()).most_common(2)[1][1] >= 4
    members: dict[int, list[int]] = {}
    for gap, number in enumerate(classes.tolist()):
        if number != ALONE:
            members.setdefault(number, []).append(gap)
    for gaps in members.values():
        assert len(gaps) > 1
        assert len({program.size_B[core.gap_value[g]] for g in gaps}) == 1
        assert all(core.is_free(g) for g in gaps)


def test_a_graph_without_repeats_has_no_twins_of_its_own_making() -> None:
    program = stage_program(random_graph(3, 14))
    assert (twin_gaps(program) == ALONE).sum() > len(program.core.gap_value) // 2


def test_mirrored_moves_are_exact_and_repeat_for_a_seed() -> None:
    program = stage_program(gpt(4))
    budget_B = program.keep_all(0).peak_B * 6 // 10
    found = []
    for _ in range(2):
        state = program.keep_all(budget_B)
        annealer = Annealer(state, 5, 4000, 3.0, 0.03, 0, twin_gaps(program))
        assert annealer.run(4000)
        assert annealer.is_valid()
        assert annealer.found
        found.append((annealer.best_time_ps, annealer.best_taus.tolist()))
    assert found[0] == found[1]


def test_a_focus_far_from_what_is_dropped_changes_nothing_there() -> None:
    program = stage_program(gpt(4))
    state = program.keep_all(program.keep_all(0).peak_B)
    annealer = Annealer(state, 1, 500, 1.0, 0.01, 0, None, [(3, 3)])
    annealer.run(500)
    touched = {int(program.core.gap_value[g]) for g in (state.taus != -1).nonzero()[0]}
    assert all(program.producer[v] <= 12 for v in touched)
