"""The host pool: exact sizes, a limit of its own, and bytes that are free again when the last tensor over them dies."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from lowtide.device.host import PAGE_B, HostPool
from lowtide.errors import ArenaError


@pytest.fixture
def pool() -> HostPool:
    return HostPool(64 * PAGE_B + 17)


def test_a_block_takes_its_pages_and_no_power_of_two(pool: HostPool) -> None:
    assert pool.stats().budget_B == 64 * PAGE_B
    tensor = pool.empty((33, PAGE_B // 4), torch.float32)
    seen = pool.stats()
    assert (seen.in_use_B, seen.requested_B, seen.blocks) == (33 * PAGE_B, 33 * PAGE_B, 1)
    assert tensor.shape == (33, PAGE_B // 4)
    assert tensor.data_ptr() % PAGE_B == 0
    assert pool.owns(tensor)
    assert pool.owns(tensor[3:])
    assert not pool.owns(torch.empty(3))
    small = pool.empty((3,))
    assert (pool.stats().in_use_B, pool.stats().requested_B) == (34 * PAGE_B, 33 * PAGE_B + 3)
    assert small.dtype is torch.uint8


def test_bytes_come_back_when_the_last_view_dies(pool: HostPool) -> None:
    tensor = pool.empty((1000,), torch.float64)
    tensor.copy_(torch.arange(1000))
    view = tensor[10:20]
    del tensor
    gc.collect()
    assert pool.stats().blocks == 1
    assert view.tolist() == list(range(10, 20))
    del view
    gc.collect()
    assert (pool.stats().in_use_B, pool.stats().blocks, pool.stats().peak_B) == (0, 0, 2 * PAGE_B)


def test_the_pool_is_a_hard_limit(pool: HostPool) -> None:
    held = [pool.empty((16 * PAGE_B,)) for _ in range(4)]
    with pytest.raises(torch.OutOfMemoryError, match=r"host pool of 256 KiB is spent: 1 B were asked for"):
        pool.empty((1,))
    del held[1]
    assert pool.empty((16 * PAGE_B,)).numel() == 16 * PAGE_B
    assert pool.stats().refusals == 1


def test_contents_do_not_mix(pool: HostPool) -> None:
    held: list[torch.Tensor] = []
    for turn in range(300):
        held.append(pool.empty((1 + (turn * 37) % 700,), torch.int64).fill_(turn))
        if len(held) > 20:
            oldest = held.pop(turn % 20)
            assert oldest.unique().numel() == 1
    assert len({int(t[0]) for t in held}) == len(held)


def test_a_tensor_like_another(pool: HostPool) -> None:
    original = torch.randn(4, 6, 5).transpose(0, 2)
    copy = pool.like(original).copy_(original)
    assert copy.stride() == original.stride()
    assert torch.equal(copy, original)
    assert pool.owns(copy)
    every_other = torch.randn(8, 8)[:, ::2]
    assert torch.equal(pool.like(every_other).copy_(every_other), every_other)
    assert pool.like(torch.empty(0, 3)).shape == (0, 3)
    with pytest.raises(ArenaError, match="strided"):
        pool.like(torch.eye(3).to_sparse())


def test_tensors_outlive_the_pool() -> None:
    pool = HostPool(4 * PAGE_B)
    tensor = pool.empty((PAGE_B,)).fill_(7)
    memory = weakref.ref(pool._memory)
    pool.close()
    with pytest.raises(ArenaError, match="closed"):
        pool.empty((1,))
    assert not pool.owns(tensor)
    del pool
    gc.collect()
    assert int(tensor.sum(dtype=torch.int64)) == 7 * PAGE_B
    assert memory() is not None
    del tensor
    gc.collect()
    assert memory() is None


def test_from_many_threads(pool: HostPool) -> None:
    wrong: list[int] = []

    def work(mark: int) -> None:
        for turn in range(200):
            tensor = pool.empty((1 + turn * 13 % PAGE_B,)).fill_(mark)
            if bool((tensor != mark).any()):
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not wrong
    assert pool.stats().in_use_B == 0
    assert pool.stats().allocations == 600


def test_pinning_is_said(pool: HostPool) -> None:
    assert HostPool(PAGE_B, pin=False).pinning == "pageable"
    assert pool.pinning in ("locked", "pageable", "registered")


@pytest.mark.parametrize("budget_B", [0, -5, PAGE_B - 1])
def test_a_pool_of_no_page(budget_B: int) -> None:
    with pytest.raises(ArenaError, match=f"have {PAGE_B} B at least"):
        HostPool(budget_B)


def test_a_pool_that_the_system_refuses() -> None:
    with pytest.raises(ArenaError, match="refuses"):
        HostPool(2**60)
