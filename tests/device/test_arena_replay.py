"""Planned places: who gets one, what counts as misplaced, and that one misplaced allocation costs one statement."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch

from lowtide.device.arena import Arena, Table, at, enter, fast_at, leave
from lowtide.device.storage import place_of
from lowtide.errors import ArenaError

MiB = 2**20


def floats(size_B: int) -> torch.Tensor:
    return torch.empty(size_B // 4, dtype=torch.float32)


def offset(tensor: torch.Tensor, arena: Arena) -> int | None:
    return place_of(tensor.untyped_storage(), arena)


def table() -> Table:
    """Three statements: two places of different sizes, two of one size, none."""
    return Table((4096, 8192, 2048, 2048), (0, 4096, 16384, 20480), (0, 2, 4, 4), ("mul", "norm", "view"))


def test_every_statement_finds_its_places(arena: Arena) -> None:
    arena.plan_top_B = table().height_B
    with arena.engaged():
        enter(table())
        at(0)
        a, small, b = floats(4096), floats(100), floats(8192)
        at(1)
        c, d = floats(2048), floats(2048)
        at(2)
        assert leave() == 4
    assert [offset(t, arena) for t in (a, b, c, d)] == [0, 4096, 16384, 20480]
    stats = arena.stats()
    assert (stats.planned_hits, stats.planned_misses, stats.misplaced_allocations, stats.small) == (4, 0, 0, 1)
    assert [(x.offset_B, x.statement) for x in arena.blocks()[:4]] == [
        (0, "mul"), (4096, "mul"), (16384, "norm"), (20480, "norm"),
    ]  # fmt: skip
    del small


def test_the_second_round_finds_the_same_places(arena: Arena) -> None:
    places = set()
    with arena.engaged():
        for _ in range(3):
            enter(table())
            at(1)
            c = floats(2048)
            at(1)
            del c
            c, d = floats(2048), floats(2048)
            places.add((offset(c, arena), offset(d, arena)))
            assert leave() == 3
            del c, d
    assert places == {(16384, 20480)}


def test_misplaced_allocations_are_named_and_cost_one_statement(arena: Arena) -> None:
    arena.plan_top_B = 64 * 1024
    arena.set_phase("earlier")
    squatter = None
    with arena.engaged():
        enter(Table((512,), (16384,), (0, 1), ("squat",)))
        at(0)
        squatter = floats(512)
        leave()
        enter(table())
        early = floats(4096)
        at(0)
        wrong_size = floats(5000)
        a, b = floats(4096), floats(8192)
        one_more = floats(4096)
        at(1)
        d = floats(2048)
        occupied = floats(2048)
        at(2)
        unplanned = floats(1024)
        assert leave() == 3
    assert [offset(t, arena) for t in (a, b, d)] == [0, 4096, 20480]
    stray = (early, wrong_size, one_more, occupied, unplanned)
    assert all((offset(t, arena) or 0) >= 64 * 1024 for t in stray)
    assert [(x.statement, x.name, x.size_B, x.reason, x.holder) for x in arena.misplaced_allocations()] == [
        (-1, "", 4096, "unexpected", ""),
        (0, "mul", 5000, "size", ""),
        (0, "mul", 4096, "unexpected", ""),
        (1, "norm", 2048, "occupied", "squat"),
        (2, "view", 1024, "unexpected", ""),
    ]
    stats = arena.stats()
    assert (stats.planned_hits, stats.planned_misses, stats.misplaced_allocations) == (4, 1, 5)
    arena.forget_misplaced_allocations()
    assert arena.misplaced_allocations() == ()
    assert arena.stats().misplaced_allocations == 5
    del squatter


def test_a_later_place_of_the_statement_serves_what_comes_early(arena: Arena) -> None:
    with arena.engaged():
        enter(table())
        at(0)
        b, a = floats(8192), floats(4096)
        assert leave() == 2
    assert (offset(a, arena), offset(b, arena)) == (0, 4096)
    assert arena.stats().misplaced_allocations == 0


def test_the_list_of_misplaced_allocations_is_bounded(arena: Arena) -> None:
    with arena.engaged():
        enter(table())
        at(2)
        for _ in range(300):
            floats(1024)
        leave()
    assert len(arena.misplaced_allocations()) == 256
    assert arena.stats().misplaced_allocations == 300


def test_segments_nest_and_survive_exceptions(arena: Arena) -> None:
    inner = Table((2048,), (32768,), (0, 1), ("inner",))
    arena.plan_top_B = 65536
    with arena.engaged():
        enter(table())
        try:
            at(0)
            a = floats(4096)
            enter(inner)
            try:
                at(0)
                c = floats(2048)
                raise ValueError
            finally:
                leave()
        except ValueError:
            b = floats(8192)
        finally:
            leave()
        after = floats(4096)
    assert [offset(t, arena) for t in (a, b, c)] == [0, 4096, 32768]
    assert (offset(after, arena) or 0) >= 65536
    assert (arena.stats().planned_hits, arena.stats().misplaced_allocations) == (3, 0)


def test_a_segment_whose_leave_was_forgotten_ends_with_the_engagement(arena: Arena) -> None:
    with arena.engaged():
        enter(table())
        at(0)
        a = floats(4096)
    assert arena.stats().planned_hits == 1
    with pytest.raises(RuntimeError, match="no segment"):
        leave()
    del a


def test_another_arena_serves_without_a_plan_meanwhile(make_arena: Callable[..., Arena]) -> None:
    planned, other = make_arena(), make_arena()
    with planned.engaged():
        enter(table())
        at(0)
        with other.engaged():
            elsewhere = floats(4096)
        a = floats(4096)
        leave()
    assert offset(elsewhere, other) is not None
    assert (offset(a, planned), planned.stats().misplaced_allocations) == (0, 0)


def test_the_arena_may_be_engaged_and_disengaged_across_a_segment(arena: Arena) -> None:
    arena.engage()
    enter(table())
    arena.engage()  # of somebody who outlives the segment
    at(0)
    a = floats(4096)
    assert leave() == 1
    arena.disengage()
    inside = floats(4096)
    arena.disengage()
    assert offset(a, arena) == 0
    assert offset(inside, arena) is not None


def test_workers_and_other_threads_take_no_planned_place(make_arena: Callable[..., Arena]) -> None:
    arena = make_arena(all_threads=True)
    arena.plan_top_B = table().height_B
    made: list[torch.Tensor] = []
    with arena.engaged():
        enter(table())
        at(0)
        thread = threading.Thread(target=lambda: made.append(floats(4096)))
        thread.start()
        thread.join()
        a = floats(4096)
        leave()
    assert offset(a, arena) == 0
    assert (offset(made[0], arena) or 0) > arena.plan_top_B
    assert next(x for x in arena.blocks() if x.offset_B > arena.plan_top_B).worker


def test_an_operator_that_runs_out_is_named(arena: Arena) -> None:
    with arena.engaged():
        enter(table())
        at(1)
        with pytest.raises(torch.OutOfMemoryError, match=r"'norm' \(statement 1\) asked for 8.00 MiB"):
            floats(8 * MiB)
        leave()


def test_temporaries_inside_operators_take_places(arena: Arena) -> None:
    """`mm` of non-contiguous bfloat16 or a softmax's backward allocate inside; here layer norm's three results."""
    x = torch.randn(512, 64)
    sizes = (512 * 64 * 4, 512 * 4, 512 * 4)
    planned = Table(sizes, (0, 2**18, 2**19), (0, 3), ("layer_norm",))
    with arena.engaged(), torch.no_grad():
        enter(planned)
        at(0)
        y = torch.native_layer_norm(x, [64], None, None, 1e-5)
        assert leave() == 3
    assert {offset(t, arena) for t in y} == {0, 2**18, 2**19}


def test_the_fast_call_is_the_same_call(arena: Arena) -> None:
    mark = fast_at()
    with arena.engaged():
        enter(table())
        mark(0)
        assert offset(floats(4096), arena) == 0
        with pytest.raises(IndexError, match="no such statement"):
            mark(3)
        with pytest.raises(IndexError, match="no such statement"):
            at(-1)
        with pytest.raises(TypeError):
            mark("0")  # type: ignore[arg-type]
        leave()
    with pytest.raises(RuntimeError, match="no segment"):
        mark(0)


def test_a_table_lives_as_long_as_its_segment(arena: Arena) -> None:
    with arena.engaged():
        enter(table())
        gc.collect()
        at(0)
        assert offset(floats(4096), arena) == 0
        leave()


def test_segments_need_an_arena_that_is_large_enough(make_arena: Callable[..., Arena]) -> None:
    with pytest.raises(RuntimeError, match="only while an arena is engaged"):
        enter(table())
    tiny = make_arena(8192, small_zone_B=0, persistent_B=0)
    with tiny.engaged(), pytest.raises(RuntimeError, match="past the engaged arena"):
        enter(table())


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("sizes_B", "offsets_B", "first", "names"),
    [
        ((512,), (), (0, 1), ("a",)),
        ((512,), (0,), (0,), ()),
        ((512,), (0,), (0, 2), ("a",)),
        ((512, 512), (0, 512), (0, 2, 1, 2), ("a", "b", "c")),
        ((512,), (0,), (0, 1), ("a", "b")),
        ((100,), (0,), (0, 1), ("a",)),
        ((512,), (32,), (0, 1), ("a",)),
        ((512,), (-64,), (0, 1), ("a",)),
        ((512,), (0,), (), ()),
    ],
)
def test_tables_that_are_none(
    sizes_B: tuple[int, ...], offsets_B: tuple[int, ...], first: tuple[int, ...], names: tuple[str, ...]
) -> None:
    with pytest.raises(ArenaError, match="table of places"):
        Table(sizes_B, offsets_B, first, names)
