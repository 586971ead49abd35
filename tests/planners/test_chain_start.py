"""Links, their options, the table over them, and the plans that are read off it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest

from lowtide._core import ChainTable
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Problem
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.chain.chain_start import chain_start
from lowtide.planners.chain.link_options import handed_on, link_options, permanent, recomputed_stages, time_ps
from lowtide.planners.chain.links import Links, links_of
from lowtide.planners.reductions.stages import stage_program
from lowtide.planners.search import Search
from tests.planners.tape import chain, gpt, random_graph, resnet, unet

GRAPHS: dict[str, Callable[[], Graph]] = {
    "gpt": functools.partial(gpt, 3),
    "resnet": functools.partial(resnet, (1, 1, 1, 1)),
    "unet": functools.partial(unet, 3),
    "chain": functools.partial(chain, 30),
    "random": functools.partial(random_graph, 4, 20, 2, True),
}


def links_in(name: str, most: int = 12) -> Links:
    (links,) = links_of(stage_program(GRAPHS[name]()), most)
    return links


@pytest.mark.parametrize("name", GRAPHS)
def test_links_cover_what_leads_to_the_loss_in_order(name: str) -> None:
    links = links_in(name)
    assert tuple(t for link in links.links for t in link) == links.half.ancestry
    assert all(links.links)
    assert 1 <= len(links.links) <= 12
    assert list(links.backward_of) == sorted(links.backward_of, reverse=True)
    assert list(links.turn_of) == sorted(links.turn_of, reverse=True)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_a_link_reads_is_its_own_or_crosses_in_front_of_it(name: str) -> None:
    links = links_in(name)
    for k, link in enumerate(links.links):
        there = set(links.crossing[k - 1]) if k else set()
        own = {v for t in link for v in links.half.outputs[t]}
        for t in link:
            assert all(v in own | there for v in links.program.read_ids[t] if v in links.again)


def test_a_mask_outside_the_trunk_does_not_keep_the_forward_in_one_piece() -> None:
    """Values that cross every cut are counted once, not a reason for fewer cuts."""
    program = stage_program(unet(4))
    (links,) = links_of(program, 40)
    assert len(links.links) == 40


def test_small_values_are_kept() -> None:
    program = stage_program(gpt(2))
    (everything,), (fewer,) = links_of(program, 10), links_of(program, 10, small_B=300_000)
    assert fewer.again < everything.again
    assert sum(program.size_B[v] for v in everything.again - fewer.again) <= 300_000


@pytest.mark.parametrize("name", GRAPHS)
def test_options_go_from_everything_to_nothing_and_like_links_have_like_ones(name: str) -> None:
    links = links_in(name)
    for k, options in enumerate(link_options(links)):
        fixed = permanent(links, k) | handed_on(links, k)
        assert options[0].rest_ps == 0
        sizes = [sum(links.program.size_B[v] for v in o.saved) for o in options]
        assert sizes == sorted(sizes, reverse=True)
        for o in options:
            rest = set(links.later[k]) - o.saved
            assert o.rest_ps == time_ps(links, recomputed_stages(links, k, fixed | o.saved, rest))


def plain_time(costs: dict[str, list[int]], first: int, last: int, m: int) -> float:
    """The recurrence of `chain_table.hpp`, read off its comment."""
    run, count, beyond = costs["run"], len(costs["run"]), costs["behind"][last]
    if m < 0:
        return float("inf")
    if first == last:
        enough = m >= max(costs["reversing"][first], costs["running"][first] if last + 1 == count else 0)
        return costs["alone"][first] if enough else float("inf")
    best = float("inf")
    for o in range(costs["begin"][first], costs["begin"][first + 1]):
        if m >= max(costs["o_reversing"][o], costs["o_running"][o] + beyond):
            rest = plain_time(costs, first + 1, last, m - costs["o_saved"][o])
            best = min(best, run[first] + costs["o_time"][o] + rest)
    for s in range(first + 1, last + 1):
        held = costs["held"][first * count : (first + 1) * count]
        if m >= beyond + max(held[k] + costs["running"][k] for k in range(first, s)):
            behind = plain_time(costs, s, last, m - held[s])
            best = min(best, sum(run[first:s]) + behind + plain_time(costs, first, s - 1, m))
    return best


@pytest.mark.parametrize("seed", range(6))
def test_the_table_has_the_least_time_of_its_recurrence(seed: int) -> None:
    dice, count, slots = random.Random(seed), 5, 12

    def some(n: int, most: int) -> list[int]:
        return [dice.randint(0, most) for _ in range(n)]

    begin = [0]
    for _ in range(count):
        begin.append(begin[-1] + dice.randint(1, 3))
    held = [dice.randint(0, 3) if s > f else 0 for f in range(count) for s in range(count)]
    costs = {
        "run": some(count, 9), "alone": some(count, 9), "running": some(count, 4), "reversing": some(count, 6),
        "behind": sorted(some(count, 3), reverse=True), "held": held, "begin": begin, "o_saved": some(begin[-1], 4),
        "o_running": some(begin[-1], 4), "o_reversing": some(begin[-1], 6), "o_time": some(begin[-1], 9),
    }  # fmt: skip
    table = ChainTable(
        costs["run"], costs["alone"], costs["running"], costs["reversing"], costs["behind"], costs["held"],
        costs["begin"], costs["o_saved"], costs["o_running"], costs["o_reversing"], costs["o_time"], slots,
    )  # fmt: skip
    assert table.is_valid()
    for m in range(slots + 1):
        expected = plain_time(costs, 0, count - 1, m)
        assert (m < table.least or table.least < 0) == (expected == float("inf"))
        if expected < float("inf"):
            assert table.time_ps(m) == expected
            option, saved_from, crossing_from = table.decode(m)
            assert len(option) == len(saved_from) == len(crossing_from) == count
            assert all((o == -2) == (cut_point == -2) for o, cut_point in zip(option, saved_from, strict=True))
    with pytest.raises(ValueError, match="slots"):
        table.decode(slots + 1)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("share", [0.1, 0.4])
def test_plans_are_legal_and_what_is_offered_fits(name: str, share: float) -> None:
    graph = GRAPHS[name]()
    program = stage_program(graph)
    floor_B, most_B = op_floor(program).floor_B, program.keep_all(0).peak_B
    search = Search(Problem(graph, floor_B + int(share * (most_B - floor_B))))
    lowest = chain_start(search)
    if lowest is None:
        return
    check(graph, program.lift(lowest))
    assert lowest.is_valid()
    if search.time_ps is not None:
        check(graph, program.lift(search.state()), search.problem.budget_B)
        assert lowest.peak_B <= search.budget_B


def test_a_deep_chain_fits_into_an_eighth_and_costs_less_than_two_more_forwards() -> None:
    graph = chain(60)
    program = stage_program(graph)
    search = Search(Problem(graph, program.keep_all(0).peak_B // 8))
    assert chain_start(search) is not None
    assert search.time_ps is not None
    assert search.time_ps < 1.67 * program.time_ps


def test_a_bundle_has_a_chain_per_part_and_they_share_the_budget() -> None:
    graph = chain(20, parts=2)
    program = stage_program(graph)
    chains = links_of(program, 10)
    assert len(chains) == 2
    assert not chains[0].again & chains[1].again
    search = Search(Problem(graph, program.keep_all(0).peak_B // 3))
    assert chain_start(search) is not None
    assert search.time_ps is not None
    check(graph, program.lift(search.state()), search.problem.budget_B)


def test_below_what_a_chain_can_do_the_lowest_plan_comes_back_all_the_same() -> None:
    graph = gpt(2)
    program = stage_program(graph)
    search = Search(Problem(graph, op_floor(program).floor_B // 2))
    lowest = chain_start(search)
    assert search.time_ps is None
    assert lowest is not None
    assert lowest.peak_B < program.keep_all(0).peak_B // 2
    check(graph, program.lift(lowest))
