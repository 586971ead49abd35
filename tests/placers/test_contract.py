"""What every placer owes: one list, all placers. A new placer is tested by its line in the catalogue."""

from __future__ import annotations

import functools

import msgspec
import pytest

from lowtide.errors import PackingError
from lowtide.ir.check_packing import check_packing
from lowtide.ir.packing import Buffer, Packed, Packing
from lowtide.placers.base import AbstractPlacer, Progress
from lowtide.placers.catalogue import PLACERS
from tests.placers.packings import at_random, nested, perfect, step_of_training
from tests.placers.shelf import optimum_B

PACKINGS = {
    "nothing": lambda: Packing(()),
    "one": lambda: Packing((Buffer(3, 7, 100),), 64),
    "no bytes": lambda: Packing((Buffer(0, 2, 0), Buffer(1, 3, 0)), 8),
    "always there": lambda: Packing((Buffer(2, 2, 5), Buffer(0, 6, 7), Buffer(5, 1, 1)), 4, period=6),
    "step": lambda: step_of_training(40),
    "nested": lambda: nested(50),
    "perfect": lambda: perfect(1, 60),
    **{f"random{s}": functools.partial(at_random, s, 40) for s in range(3)},
    **{f"cyclic{s}": functools.partial(at_random, s, 40, period=30) for s in range(3)},
    **{f"given{s}": functools.partial(at_random, s, 40, given=6) for s in range(3)},
    **{f"cyclic given{s}": functools.partial(at_random, s, 30, period=50, given=5) for s in range(3)},
}
TINY = {
    **{f"random{s}": functools.partial(at_random, s, 6) for s in range(6)},
    **{f"cyclic{s}": functools.partial(at_random, s, 6, period=7) for s in range(6)},
    **{f"given{s}": functools.partial(at_random, s, 6, given=2) for s in range(6)},
    **{f"cyclic given{s}": functools.partial(at_random, s, 6, period=8, given=2) for s in range(6)},
}
WORK = 20_000
every_placer = pytest.mark.parametrize("placer", PLACERS, ids=lambda p: p.name)


@functools.cache
def tiny(name: str) -> tuple[Packing, int]:
    packing = TINY[name]()
    return packing, optimum_B(packing)


def without_clock(packed: Packed) -> Packed:
    stats = {k: v for k, v in packed.stats.items() if not k.endswith("_s")}
    return msgspec.structs.replace(packed, seconds_s=0.0, stats=stats)


@every_placer
@pytest.mark.parametrize("name", PACKINGS)
def test_placements_are_legal(placer: AbstractPlacer, name: str) -> None:
    packing = PACKINGS[name]()
    assert placer.refuses(packing) is None
    packed = placer.place(packing, work=WORK)
    check_packing(packing, packed)
    assert packed.placer == placer.name


@every_placer
@pytest.mark.parametrize("name", ["step", "perfect", "cyclic1", "cyclic given1"])
def test_the_same_seed_and_work_give_the_same_placement(placer: AbstractPlacer, name: str) -> None:
    packing = PACKINGS[name]()
    first = placer.place(packing, seed=3, work=5000)
    assert without_clock(placer.place(packing, seed=3, work=5000)) == without_clock(first)


@every_placer
@pytest.mark.parametrize("name", TINY)
def test_bounds_and_proofs_hold_against_the_true_optimum(placer: AbstractPlacer, name: str) -> None:
    packing, optimum_B = tiny(name)
    packed = placer.place(packing, work=WORK)
    check_packing(packing, packed)
    assert packed.bound_B <= optimum_B <= packed.height_B
    assert packed.optimal == (packed.height_B == packed.bound_B)


@every_placer
def test_what_fits_the_capacity_is_good_enough(placer: AbstractPlacer) -> None:
    packing = perfect(2, 60)
    lowest = placer.place(packing, work=WORK)
    loose = msgspec.structs.replace(packing, capacity_B=2 * lowest.height_B)
    packed = placer.place(loose, work=WORK)
    check_packing(loose, packed)
    assert packed.height_B <= 2 * lowest.height_B
    assert packed.stats["work"] <= lowest.stats["work"]


@every_placer
def test_a_capacity_below_the_bound_is_seen_in_the_bound(placer: AbstractPlacer) -> None:
    packed = placer.place(msgspec.structs.replace(nested(10), capacity_B=1), work=WORK)
    assert packed.height_B >= packed.bound_B > 1


@every_placer
def test_packings_that_make_no_sense_are_refused(placer: AbstractPlacer) -> None:
    for packing, reason in (
        (Packing((Buffer(3, 3, 1),)), "ends before it begins"),
        (Packing((Buffer(0, 1, -1),)), "negative size"),
        (Packing((Buffer(0, 9, 1),), period=8), "leaves the period"),
        (Packing((Buffer(0, 1, 1, 3),), 2), "not a multiple"),
        (Packing((), 0), "alignment"),
        (Packing((), 1, period=0), "period"),
        (Packing((Buffer(0, 2, 9, 0), Buffer(1, 3, 9, 8))), "collide"),
        (Packing((Buffer(5, 1, 9, 0), Buffer(0, 3, 9, 8)), period=6), "collide"),
    ):
        with pytest.raises(PackingError, match=reason):
            placer.place(packing)


@every_placer
def test_watchers_see_progress(placer: AbstractPlacer) -> None:
    seen: list[Progress] = []
    placer.place(perfect(3, 80, width=200, height=4096), work=WORK, watch=seen.append)
    assert seen
    assert [p.elapsed_s for p in seen] == sorted(p.elapsed_s for p in seen)
    assert [p.bound_B for p in seen] == sorted(p.bound_B for p in seen)
    heights = [p.height_B for p in seen if p.height_B is not None]
    assert heights == sorted(heights, reverse=True)


@every_placer
def test_ctrl_c_ends_the_search(placer: AbstractPlacer) -> None:
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        placer.place(perfect(4, 80), work=10**9, watch=interrupt)
