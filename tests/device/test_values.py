"""Arenas of values: who holds which block, who died, and bytes that are freed under pressure."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from tests.device import surgery
from tests.device.surgery import ValueArena

CAPACITY_B = 2**20
GONE = "the bytes were evicted"


@pytest.fixture
def values(module: object) -> Iterator[ValueArena]:
    assert module is not None
    arena = ValueArena(CAPACITY_B)
    yield arena
    arena.set_pressure(None)
    assert arena.slab.check() == ""
    arena.retire()


def owned(arena: ValueArena, value: int, count: int = 60000) -> torch.Tensor:
    with arena.engaged():
        tensor = torch.arange(count, dtype=torch.float32)
    assert arena.own(offset_of(arena, tensor), value)
    return tensor


def offset_of(arena: ValueArena, tensor: torch.Tensor) -> int:
    offset_B = surgery.place_of(tensor.untyped_storage(), arena)
    assert offset_B is not None
    return offset_B


def test_a_value_dies_with_its_last_view(values: ValueArena) -> None:
    tensor = owned(values, 7)
    with values.engaged():
        torch.ones(10)  # nobody's
    view = tensor[3:]
    del tensor
    assert values.take_deaths() == []
    del view
    assert values.take_deaths() == [7]
    assert values.take_deaths() == []


def test_what_is_dropped_moved_or_stolen_has_not_died(values: ValueArena) -> None:
    tensor, other = owned(values, 7), owned(values, 8)
    assert surgery.relocate(tensor.untyped_storage(), values, 0)
    assert (0, 240000, 240000, 7) in values.owners()
    surgery.drop(tensor.untyped_storage(), GONE, values, 7)
    surgery.steal(tensor.untyped_storage(), other.untyped_storage())
    del other
    assert [value for *_, value in values.owners()] == [0]
    assert values.own(offset_of(values, tensor), 7)
    assert values.take_deaths() == []
    surgery.drop(tensor.untyped_storage(), GONE, values, 7)
    surgery.restore(tensor.untyped_storage(), values)
    assert values.take_deaths() == []


def test_a_dropped_storage_reports_its_death(values: ValueArena) -> None:
    tensor = owned(values, 7)
    surgery.drop(tensor.untyped_storage(), GONE, values, 9)
    assert values.owners() == []
    del tensor
    assert values.take_deaths() == [9]


def test_bytes_are_freed_under_pressure(values: ValueArena) -> None:
    tensors, asked = [owned(values, 1 + i) for i in range(4)], list[int]()

    def relieve(size_B: int) -> bool:
        surgery.drop(tensors[len(asked)].untyped_storage(), GONE, values, 1 + len(asked))
        asked.append(size_B)
        return True

    values.set_pressure(relieve)
    with values.engaged():
        kept = torch.zeros(110000)
    assert asked == [440000] * 2  # one hole was too small, two next to each other suffice
    assert [value for *_, value in values.owners()] == [4, 3, 0]
    assert kept.sum() == 0


def test_a_hook_that_cannot_help_leaves_the_refusal(values: ValueArena) -> None:
    values.set_pressure(lambda _: False)
    with values.engaged(), pytest.raises(torch.OutOfMemoryError, match="the budget of"):
        torch.ones(CAPACITY_B)


def test_what_a_hook_raises_reaches_the_caller(values: ValueArena) -> None:
    def relieve(_: int) -> bool:
        raise KeyError("no such value")

    values.set_pressure(relieve)
    with values.engaged(), pytest.raises(KeyError, match="no such value"):
        torch.ones(CAPACITY_B)
    with values.engaged():
        assert torch.ones(10).sum() == 10


def test_sliding_makes_one_hole_and_storages_follow(values: ValueArena) -> None:
    tensors = [owned(values, 1 + i) for i in range(4)]
    view = tensors[3][5:]
    for i in (0, 2):
        surgery.drop(tensors[i].untyped_storage(), GONE)
    movable = {offset_of(values, tensors[i]): tensors[i].untyped_storage()._cdata for i in (1, 3)}
    moves, moved_B, hole_B = values.slide_for(500000, movable)
    assert (moves >= 1, moved_B == moves * 240000, hole_B >= 0) == (True, True, True)
    assert view[0].item() == 5.0
    assert bool((tensors[1] == torch.arange(60000)).all())
    del view, tensors
    assert sorted(values.take_deaths()) == [2, 4]


def test_sides(values: ValueArena) -> None:
    values.set_side(False)
    low, tiny = owned(values, 1), owned(values, 2, 100)
    values.set_side(True)
    high = owned(values, 3)
    assert [value for *_, value in values.owners()] == [1, 3, 2]
    assert offset_of(values, low) == 0
    assert values.holes() == [(240000, offset_of(values, high))]
    del tiny


def test_deaths_are_reported_from_any_thread(values: ValueArena) -> None:
    held = [[owned(values, 10 * i + j, 100) for j in range(1, 10)] for i in range(4)]
    threads = [threading.Thread(target=mine.clear) for mine in held]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(values.take_deaths()) == [10 * i + j for i in range(4) for j in range(1, 10)]


def test_the_books_of_a_kernel(values: ValueArena) -> None:
    before = owned(values, 1)
    values.meter()
    with values.engaged():
        first, second = torch.empty(1000), torch.empty(2000)
        del first, before
        third, tiny = torch.empty(5000), torch.empty(10)
    del second
    assert values.metered() == [8000, 20000]
    assert values.metered() == []
    del third, tiny


def test_a_block_that_is_kept_outlives_its_storage(values: ValueArena) -> None:
    tensor = owned(values, 7)
    offset_B = offset_of(values, tensor)
    values.own(offset_B, 7, keeps=True)
    assert [value for *_, value in values.owners()] == [7]
    del tensor
    assert values.take_deaths() == [-7]
    assert len(values.owners()) == 1
    storage = values.adopt(offset_B, 240000)
    values.own(offset_B, 0)
    assert torch.empty(0).set_(storage)[77] == 77.0
    del storage
    assert values.owners() == []
