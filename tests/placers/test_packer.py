"""The core's greedy placing against the readable one, and the heights that people count on."""

from __future__ import annotations

import random

import pytest

from lowtide._core import OrderSearch, ValleySearch, place_in_order
from lowtide.ir.check_packing import check_packing
from lowtide.ir.packing import Buffer, Packing
from lowtide.placers.arcs import arcs_of
from lowtide.placers.bound import bound_B, live_B
from lowtide.placers.orders import ORDERS, order_by
from lowtide.placers.portfolio import place
from tests.placers import shelf
from tests.placers.packings import at_random, nested, perfect, step_of_training

KINDS = {
    "plain": lambda seed: at_random(seed, 60),
    "cyclic": lambda seed: at_random(seed, 60, period=40),
    "given": lambda seed: at_random(seed, 60, given=8),
    "cyclic given": lambda seed: at_random(seed, 60, period=90, given=8),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("best_fit", [False, True])
def test_the_core_places_as_the_readable_packer_does(kind: str, best_fit: bool) -> None:
    for seed in range(6):
        packing = KINDS[kind](seed)
        arcs = arcs_of(packing)
        order = list(range(len(arcs.numbers)))
        random.Random(seed).shuffle(order)
        found = place_in_order(arcs.lifetimes, order, best_fit)
        expected = shelf.place_in_order(packing, [arcs.numbers[i] for i in order], best_fit)
        assert [o * arcs.unit_B for o in found] == [expected[n] for n in arcs.numbers]


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_counts_what_is_live(kind: str) -> None:
    for seed in range(6):
        packing = KINDS[kind](seed)
        live = [
            sum(packing.rounded_B(b.size_B) for b in packing.buffers if tick in shelf.ticks(packing, b))
            for tick in range(packing.period or 200)
        ]
        given = [(b.offset_B, packing.rounded_B(b.size_B)) for b in packing.buffers if b.offset_B is not None]
        assert bound_B(packing) == max(*live, *(offset_B + size_B for offset_B, size_B in given if size_B))
        assert max(live) == max(size_B for _, size_B in live_B(packing))


@pytest.mark.parametrize("kind", KINDS)
def test_traits_are_what_they_say(kind: str) -> None:
    packing = KINDS[kind](7)
    arcs = arcs_of(packing)
    for number, traits in zip(arcs.numbers, arcs.traits, strict=True):
        buffer = packing.buffers[number]
        ticks = shelf.ticks(packing, buffer)
        crowd_B = max(
            sum(packing.rounded_B(b.size_B) for b in packing.buffers if t in shelf.ticks(packing, b)) for t in ticks
        )
        assert traits.size * arcs.unit_B == packing.rounded_B(buffer.size_B)
        assert traits.crowd * arcs.unit_B == crowd_B
        assert traits.wraps == (packing.period is not None and buffer.start >= buffer.stop > 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_search_stays_consistent(kind: str) -> None:
    packing = KINDS[kind](3)
    arcs = arcs_of(packing)
    search = OrderSearch(arcs.lifetimes, order_by(arcs, ORDERS["start"]), False, seed=1, enough=1)
    first = search.best_height
    for _ in range(20):
        search.run(20)
        assert search.is_valid()
    assert search.tried > search.kept > 0
    assert search.best_height <= first


def test_the_exact_search_finds_what_fits_with_nothing_to_spare() -> None:
    for seed in range(12):
        packing = perfect(seed, 20 + 10 * seed)
        packed = place(packing, seed=seed)
        check_packing(packing, packed)
        assert packed.optimal
        assert packed.height_B == 64


def test_the_exact_search_proves_that_nothing_is_lower() -> None:
    """Three buffers in a ring, of which any two meet: live bytes are two, the height is three."""
    ring = Packing(tuple(Buffer(start, stop, 8) for start, stop in ((0, 4), (2, 6), (4, 2))), period=6)
    packed = place(ring)
    check_packing(ring, packed)
    assert bound_B(ring) == 16
    assert packed.height_B == packed.bound_B == 24
    assert packed.optimal


def test_the_search_is_cut_short_by_its_work() -> None:
    packing = perfect(1, 200, width=300, height=4096)
    arcs = arcs_of(packing)
    search = ValleySearch(arcs.lifetimes, bound_B(packing) // arcs.unit_B, 0)
    before = search.work
    assert search.run(3, 1000, lambda: None) is None
    assert search.work <= before + 5


@pytest.mark.parametrize("layers", [50, 200])
def test_training_steps_and_stacks_reach_the_live_bytes(layers: int) -> None:
    for packing in (nested(layers), step_of_training(layers, seed=layers)):
        packed = place(packing)
        check_packing(packing, packed)
        assert packed.height_B == packed.bound_B
