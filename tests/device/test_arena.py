"""An arena on real memory: who is served from it, where, and what happens at the limit."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest
import torch

from lowtide.device.arena import ALIGNMENT_B, SMALL_B, Arena, nothing_engaged
from lowtide.device.storage import PERSISTENT, place_of, relocate
from lowtide.errors import ArenaError, LowtideError

MiB = 2**20
Make = Callable[..., Arena]


def offset(tensor: torch.Tensor, arena: Arena) -> int | None:
    return place_of(tensor.untyped_storage(), arena)


def floats(size_B: int) -> torch.Tensor:
    return torch.empty(size_B // 4, dtype=torch.float32)


def test_an_engaged_thread_is_served_from_the_arena_and_nobody_else(arena: Arena) -> None:
    before = floats(1000)
    with arena.engaged():
        inside = floats(1000)
        others: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: others.append(floats(1000)))
        thread.start()
        thread.join()
    after = floats(1000)
    assert offset(inside, arena) is not None
    assert [offset(t, arena) for t in (before, after, *others)] == [None] * 3
    assert inside.data_ptr() % ALIGNMENT_B == 0
    assert (arena.stats().outside, arena.stats().outside_B) == (1, 1000)
    del inside
    assert arena.stats().in_use_B == 0


def test_zones(arena: Arena) -> None:
    arena.plan_top_B = MiB
    with arena.engaged():
        small, large = torch.empty(SMALL_B - 1, dtype=torch.uint8), floats(SMALL_B)
    general_top_B, small_B = 4 * MiB - 64 * 1024 - MiB, 4 * MiB - 64 * 1024
    assert offset(small, arena) == 4 * MiB - SMALL_B
    assert offset(large, arena) == general_top_B - SMALL_B
    assert relocate(large.untyped_storage(), arena, PERSISTENT)
    place = arena.new_place(2 * SMALL_B)
    assert place is not None
    assert place.nbytes() == 2 * SMALL_B
    assert offset(large, arena) == small_B - SMALL_B
    assert place_of(place, arena) == small_B - 3 * SMALL_B
    assert arena.in_use_below(MiB) == 0
    stats = arena.stats()
    assert (stats.small, stats.overflow, stats.blocks) == (1, 0, 3)
    assert arena.new_place(MiB) is None


def test_while_resting_requests_go_to_the_persistent_zone_and_then_to_the_low_end(arena: Arena) -> None:
    arena.plan_top_B = MiB
    small_B = 4 * MiB - 64 * 1024
    with arena.engaged():
        arena.resting = True
        state, passing = floats(MiB // 2), floats(MiB)
        arena.resting = False
        general = floats(4096)
    assert offset(state, arena) == small_B - MiB // 2
    assert offset(passing, arena) == 0
    assert offset(general, arena) == small_B - MiB - 4096
    assert arena.stats().overflow == 0


def test_bytes_set_aside_are_nobodys(arena: Arena) -> None:
    aside = arena.set_aside(2 * MiB)
    assert aside is not None
    with arena.engaged(), pytest.raises(torch.OutOfMemoryError):
        floats(2 * MiB)
    assert arena.set_aside(2 * MiB) is None
    del aside
    with arena.engaged():
        assert offset(floats(2 * MiB), arena) is not None


def test_what_does_not_fit_its_zone_overflows_before_it_is_refused(make_arena: Make) -> None:
    arena = make_arena(MiB, small_zone_B=1024, persistent_B=MiB // 4)
    arena.plan_top_B = MiB // 2
    with arena.engaged():
        smalls = [torch.empty(8) for _ in range(17)]
        assert arena.stats().overflow == 0
        first = floats(MiB // 4 - 4096)
        assert arena.stats().overflow == 0
        places = floats(MiB // 4 - 4096)
        assert arena.stats().overflow == 1
        with pytest.raises(
            torch.OutOfMemoryError
        ):  # there are free bytes below the plan's top, which the plan is to find free
            floats(MiB // 4)
        arena.plan_top_B = 0
        planned = floats(MiB // 4)
        assert arena.stats().overflow == 1
    assert arena.in_use_below(offset(planned, arena) or 0) == 0
    del smalls, first, places


def test_past_the_capacity_torch_raises_out_of_memory_and_says_why(arena: Arena) -> None:
    arena.set_phase("between forward and backward")
    with arena.engaged():
        kept = [floats(MiB), floats(MiB)]
        with pytest.raises(torch.OutOfMemoryError) as caught:
            floats(3 * MiB)
        text = str(caught.value)
        for part in ("4.00 MiB is spent", "3.00 MiB (3145728 B)", "2.00 MiB are in use", "largest hole is"):
            assert part in text
        assert "between forward and backward asked for" in text
        assert "Raise the budget" in text
        assert arena.stats().failures_for_capacity == 1
        del kept[0]
        fits = floats(MiB)
    assert arena.stats().peak_B <= arena.stats().capacity_B
    del fits


@pytest.mark.parametrize("size_B", [2**40, 2**62, 2**63 - 64, 2**63 - 1])
def test_absurd_sizes_are_refused_like_any_other(arena: Arena, size_B: int) -> None:
    with arena.engaged(), pytest.raises(torch.OutOfMemoryError, match=f"{size_B} B"):
        torch.empty(size_B, dtype=torch.uint8)
    assert arena.stats().failures_for_capacity == 1


def test_free_bytes_in_pieces_are_told_apart(make_arena: Make) -> None:
    arena = make_arena(MiB, small_zone_B=0, persistent_B=0)
    with arena.engaged():
        parts = [floats(MiB // 8) for _ in range(8)]
        del parts[::2]
        with pytest.raises(torch.OutOfMemoryError, match="lie in pieces"):
            floats(MiB // 4)
    stats = arena.stats()
    assert (stats.failures_for_capacity, stats.failures_for_contiguity) == (0, 1)
    assert stats.largest_hole_B == MiB // 8


@pytest.mark.usefixtures("module")
def test_tensors_outlive_their_arena() -> None:
    arena = Arena(MiB, small_zone_B=0, persistent_B=0)
    with arena.engaged():
        tensor = torch.arange(1000.0)
    slab = arena.slab
    arena.close()
    assert not slab.is_open
    with pytest.raises(RuntimeError, match="closed arena"):
        arena.engage()
    del arena
    gc.collect()
    assert tensor.sum().item() == 499500.0
    assert slab.stats()["in_use_B"] == 4032
    del tensor
    assert slab.stats()["in_use_B"] == 0


@pytest.mark.usefixtures("module")
def test_memory_is_given_back_when_the_last_block_is_gone() -> None:
    def mapped(address: int) -> bool:
        with open("/proc/self/maps") as maps:
            spans = [line.split()[0].split("-") for line in maps]
        return any(int(lo, 16) <= address < int(hi, 16) for lo, hi in spans)

    arena = Arena(64 * MiB, small_zone_B=0, persistent_B=0)
    with arena.engaged():
        tensor = floats(MiB)
    base = arena.slab.base
    arena.close()
    assert mapped(base)
    del tensor
    assert not mapped(base)


@pytest.mark.usefixtures("module")
def test_an_engaged_arena_cannot_be_closed_and_a_forgotten_one_closes_late() -> None:
    arena = Arena(MiB, small_zone_B=0, persistent_B=0)
    with arena.engaged():
        with pytest.raises(ArenaError, match="still engaged"):
            arena.close()
        slab, disengage = arena.slab, arena.disengage
        arena.engage()
    slab.close()
    assert slab.is_open
    disengage()
    assert not slab.is_open
    with pytest.raises(RuntimeError, match="not engaged"):
        disengage()


def test_arenas_nest_and_engagements_count(make_arena: Make) -> None:
    outer, inner = make_arena(MiB, persistent_B=0), make_arena(MiB, persistent_B=0)

    def serving() -> Arena | None:
        tensor = floats(1024)
        return next((a for a in (outer, inner) if offset(tensor, a) is not None), None)

    outer.engage()
    outer.engage()
    inner.engage()
    assert serving() is inner
    outer.engage()
    assert serving() is outer
    inner.disengage()
    outer.disengage()
    assert serving() is outer
    outer.disengage()
    assert serving() is outer
    outer.disengage()
    assert serving() is None


def test_a_suspended_thread_is_served_by_nobody_and_goes_on(arena: Arena) -> None:
    with arena.engaged():
        with nothing_engaged(), nothing_engaged():
            assert offset(floats(1000), arena) is None
            with arena.engaged():
                assert offset(floats(1000), arena) is None
        assert offset(floats(1000), arena) is not None
    assert arena.slab.engagements == 0


def test_a_thread_that_ends_lets_go(arena: Arena) -> None:
    thread = threading.Thread(target=arena.engage)
    thread.start()
    thread.join()
    for _ in range(1000):  # Python lets join() return a moment before the system's thread is gone
        if arena.slab.engagements == 0:
            break
        time.sleep(0.01)
    assert arena.slab.engagements == 0


def test_all_threads(make_arena: Make) -> None:
    arena = make_arena(all_threads=True)
    made: list[torch.Tensor] = []
    with arena.engaged():
        thread = threading.Thread(target=lambda: made.append(floats(MiB)))
        thread.start()
        thread.join()
    assert offset(made[0], arena) is not None
    assert (arena.stats().workers_B, arena.stats().outside) == (MiB, 0)
    made.clear()
    assert (arena.stats().workers_B, arena.stats().workers_peak_B) == (0, MiB)


def test_workers_of_a_parallel_operator_are_served_and_counted(arena: Arena) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        q, k, v = (torch.randn(2, 4, 64, 16, requires_grad=True) for _ in range(3))
        with arena.engaged():
            torch.nn.functional.scaled_dot_product_attention(q, k, v).sum().backward()
    finally:
        torch.set_num_threads(threads)
    stats = arena.stats()
    assert stats.workers > 0
    assert stats.workers_B == 0
    assert 0 < stats.workers_peak_B < 64 * 1024
    assert stats.outside == 0


def test_releases_from_any_thread(arena: Arena) -> None:
    with arena.engaged():
        tensors = [torch.full((1000 + i,), float(i)) for i in range(200)]
    halves = tensors[::2], tensors[1::2]
    del tensors
    threads = [threading.Thread(target=half.clear) for half in halves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arena.stats().in_use_B == 0


def test_many_threads_at_once(make_arena: Make) -> None:
    arena = make_arena(16 * MiB)
    wrong: list[str] = []

    def work(seed: int) -> None:
        with arena.engaged():
            kept: list[torch.Tensor] = []
            for i in range(400):
                kept.append(torch.full((1 + (i * 37 + seed) % 3000,), float(seed * 1000 + i)))
                if len(kept) > 20:
                    oldest = kept.pop((i * 7) % 20)
                    if not bool((oldest == oldest[0]).all()):
                        wrong.append(f"{seed} {i}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert arena.stats().in_use_B == 0


def test_who_holds_what(arena: Arena) -> None:
    arena.set_phase("loading")
    with arena.engaged():
        a = floats(4096)
        arena.set_phase("logging")
        b = floats(8000)
    blocks = arena.blocks()
    assert [(x.requested_B, x.reserved_B, x.phase) for x in blocks] == [
        (8000, 8000, "logging"),
        (4096, 4096, "loading"),
    ]
    assert arena.stats().by_phase == {"loading": 4096, "logging": 8000}
    assert offset(a, arena) == blocks[1].offset_B
    del b


def test_peaks_restart_and_pages_are_given_back(arena: Arena) -> None:
    with arena.engaged():
        kept = torch.ones(1024)
        torch.ones(MiB // 4)
    assert arena.stats().peak_B == MiB + 4096
    arena.reset_peaks()
    assert arena.stats().peak_B == 4096
    assert arena.trim() == 4 * MiB - 4096
    assert bool((kept == 1.0).all())


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("capacity_B", "small_zone_B", "persistent_B"),
    [(0, 0, 0), (-1, 0, 0), (MiB, 2 * MiB, 0), (MiB, 0, 2 * MiB), (MiB, -64, 0)],
)
def test_arenas_that_cannot_be(capacity_B: int, small_zone_B: int, persistent_B: int) -> None:
    with pytest.raises(ArenaError):
        Arena(capacity_B, small_zone_B=small_zone_B, persistent_B=persistent_B)


def test_zones_that_cannot_be(arena: Arena) -> None:
    with pytest.raises(ArenaError, match="plan"):
        arena.plan_top_B = 8 * MiB
    with pytest.raises(LowtideError, match="persistent zone"):
        arena.persistent_B = 4 * MiB
    assert (arena.plan_top_B, arena.persistent_B) == (0, MiB)


@pytest.mark.usefixtures("module")
def test_more_memory_than_an_address_space_has() -> None:
    with pytest.raises(ArenaError, match="reserved"):
        Arena(2**62, small_zone_B=0, persistent_B=0)
