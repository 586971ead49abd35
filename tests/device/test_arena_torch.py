"""What else touches a tensor's bytes: the profiler, numpy, other processes, forks, oneDNN, pickles. All are right."""

from __future__ import annotations

import copy
import io
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lowtide.device.arena import Arena, Table, at, enter, leave
from lowtide.device.storage import place_of, relocate

MiB = 2**20


def is_inside(tensor: torch.Tensor, arena: Arena) -> bool:
    return place_of(tensor.untyped_storage(), arena) is not None


def profiled_sizes(work: Callable[[], object]) -> list[int]:
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True, acc_events=True) as seen:
        work()
    records = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    return [e.nbytes() for e in records]


def test_the_profiler_sees_arena_blocks_like_any_others(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")  # read once, by the first session of the process

    def work() -> None:
        a = torch.empty(1000)
        b = torch.empty(500)
        del a
        del b

    with arena.engaged():
        inside = profiled_sizes(work)
    assert inside == profiled_sizes(work) == [4000, 2000, -4000, -2000]


def test_convolution_by_onednn(arena: Arena) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 8, 16, 16), torch.randn(16, 8, 3, 3, requires_grad=True)
    plain = torch.nn.functional.conv2d(x, w, padding=1)
    plain.sum().backward()
    expected, w.grad = w.grad, None
    with arena.engaged():
        y = torch.nn.functional.conv2d(x, w, padding=1)
        y.sum().backward()
    assert w.grad is not None
    assert expected is not None
    assert torch.equal(y, plain)
    assert torch.equal(w.grad, expected)
    assert is_inside(y, arena)
    assert is_inside(w.grad, arena)


def test_numpy_views_keep_the_block_and_arrays_stay_outside(arena: Arena) -> None:
    with arena.engaged():
        view = torch.arange(1000.0).numpy()
        array = np.arange(1000.0)
        tensor = torch.from_numpy(array)
    assert arena.stats().blocks == 1
    assert view.sum() == 499500.0
    assert not is_inside(tensor, arena)
    array[0] = 7.0
    assert tensor[0].item() == 7.0
    del view
    assert arena.stats().blocks == 0


def test_shared_memory_leaves_the_arena(arena: Arena) -> None:
    with arena.engaged():
        tensor = torch.arange(1000.0)
        assert is_inside(tensor, arena)
        tensor.share_memory_()
    assert tensor.is_shared()
    assert not is_inside(tensor, arena)
    assert tensor.sum().item() == 499500.0
    assert arena.stats().in_use_B == 0


def test_files_and_deep_copies(arena: Arena) -> None:
    """A deep copy's storage comes from torch's default allocator, past the active one; it can be moved in."""
    with arena.engaged():
        tensor, file = torch.arange(1000.0), io.BytesIO()
        twin = copy.deepcopy(tensor)
        torch.save(tensor, file)
        file.seek(0)
        read = torch.load(file)
        assert is_inside(read, arena)
        assert not is_inside(twin, arena)
        assert relocate(twin.untyped_storage(), arena)
        assert is_inside(twin, arena)
        assert torch.equal(twin, tensor)
        assert torch.equal(read, tensor)
        twin.resize_(2000)
        assert is_inside(twin, arena)


def test_resizing_within_and_without(arena: Arena) -> None:
    before = torch.ones(100)
    with arena.engaged():
        tensor = torch.ones(1000)
        tensor.resize_(2000)
        before.untyped_storage().resize_(8000)
        assert is_inside(tensor, arena)
        tensor.untyped_storage().resize_(0)
    assert bool((before == 1.0).all())
    assert arena.stats().blocks <= 1


def test_empty_tensors(arena: Arena) -> None:
    with arena.engaged():
        empty = torch.empty(0)
        torch.cat([empty, torch.ones(1000)])
    assert arena.stats().in_use_B == 0
    assert empty.data_ptr() == 0


def test_a_negative_size_is_torchs_own_error(arena: Arena) -> None:
    with arena.engaged(), pytest.raises(RuntimeError, match="negative"):
        torch.empty(-1)
    assert arena.stats().requests == 0


def test_out_of_memory_in_a_worker_thread_reaches_the_caller(arena: Arena) -> None:
    threads = torch.get_num_threads()
    q, k, v = (torch.randn(1, 2, 32, 16, requires_grad=True) for _ in range(3))
    loss = torch.nn.functional.scaled_dot_product_attention(q, k, v).sum()
    torch.set_num_threads(2)
    try:
        with arena.engaged():
            fill = torch.empty(arena.stats().largest_hole_B, dtype=torch.uint8)
            rest = [torch.empty(s, dtype=torch.uint8) for s in (MiB, 65536 - 64) if s <= arena.stats().largest_hole_B]
            with pytest.raises(torch.OutOfMemoryError):
                loss.backward()
            del fill, rest
    finally:
        torch.set_num_threads(threads)
    assert arena.stats().workers_B == 0


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000,), float(index)) ** 2


def test_forked_loader_workers(arena: Arena) -> None:
    """Workers start while this thread is engaged and in a segment; they allocate outside, and fill no arena of ours."""
    with arena.engaged():
        enter(Table((4096,), (0,), (0, 1), ("mul",)))
        at(0)
        kept = torch.full((1000,), 3.0)
        batches = list(DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork"))
        leave()
    assert [b[0, 0].item() for b in batches] == [0.0, 16.0, 64.0, 144.0]
    assert bool((kept == 3.0).all())
    assert arena.slab.check() == ""


def in_child(work: Callable[[], bool]) -> int:
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_starts_disengaged_and_may_undo_what_its_parent_did(arena: Arena) -> None:
    arena.engage()
    inside = torch.ones(1000)
    enter(Table((4096,), (0,), (0, 1), ("mul",)))

    def work() -> bool:
        fresh = not is_inside(torch.ones(1000), arena) and bool((inside == 1.0).all())
        at(0)
        assert leave() == 0
        arena.disengage()
        with arena.engaged():
            return fresh and is_inside(torch.ones(1000), arena)

    assert in_child(work) == 0
    leave()
    arena.disengage()
    assert arena.stats().blocks == 1


def test_forking_while_other_threads_allocate(make_arena: Callable[..., Arena]) -> None:
    arena = make_arena()
    stop = threading.Event()

    def allocate() -> None:
        with arena.engaged():
            while not stop.is_set():
                torch.ones(1000)

    threads = [threading.Thread(target=allocate) for _ in range(3)]
    for thread in threads:
        thread.start()

    def work() -> bool:
        with arena.engaged():
            return all(is_inside(torch.empty(1000), arena) for _ in range(10))

    try:
        codes = {in_child(work) for _ in range(20)}
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert codes == {0}
    assert arena.stats().in_use_B == 0


def test_a_training_step_is_equal_and_wholly_inside(make_arena: Callable[..., Arena]) -> None:
    def step() -> list[Any]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(inplace=True), torch.nn.Flatten(),
            torch.nn.Dropout(0.5), torch.nn.Linear(8 * 36, 10),
        )  # fmt: skip
        optimizer = torch.optim.AdamW(net.parameters())
        x, target = torch.randn(4, 3, 8, 8), torch.arange(4)
        for _ in range(2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), target).backward()
            optimizer.step()
        return [*net.parameters(), *(p.grad for p in net.parameters()), *net.buffers()]

    arena = make_arena(16 * MiB)
    expected = step()
    with arena.engaged():
        found = step()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert all(is_inside(t, arena) for t in found)
    assert (arena.stats().outside, arena.stats().overflow) == (0, 0)
