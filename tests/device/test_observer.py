"""Observed allocator events: all of the block's, in order, also when the block fails."""

from __future__ import annotations

import gc

import pytest
import torch

from lowtide.device import shim
from lowtide.device.arena import Arena
from lowtide.device.observer import Observation, observe
from lowtide.device.shim_module import ShimModule
from lowtide.errors import LowtideError


@pytest.fixture(autouse=True, params=["by torch's profiler", "by lowtide's allocator"])
def _observer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test holds for both observers."""
    if "profiler" in request.param:
        monkeypatch.setattr(shim, "loaded", lambda: None)
    else:
        request.getfixturevalue("module")


def test_peak_and_end_of_a_block() -> None:
    with observe() as seen:
        a = torch.empty(1000)
        b = torch.empty(500)
        del a
        c = torch.empty(250)
    assert [e.size_B for e in seen.events] == [4000, 2000, -4000, 1000]
    assert [e.order for e in seen.events] == [0, 1, 2, 3]
    assert seen.events[0].address == seen.events[2].address
    assert (seen.peak_B, seen.end_B) == (6000, 3000)
    del b, c


def test_an_exception_passes_through_and_leaves_the_events() -> None:
    def fail() -> None:
        tensor = torch.empty(100)
        raise ValueError(tensor.shape)

    observer = observe()
    with pytest.raises(ValueError, match="100"), observer:
        fail()
    assert observer.events[0].size_B == 400
    with observe() as again:
        torch.empty(10)
    assert again.peak_B == 40


def test_releases_of_earlier_blocks_are_no_events() -> None:
    with observe():
        kept = torch.empty(100)
    del kept
    tensors = [torch.empty(100) for _ in range(20)]  # some of them where `kept` was
    with observe() as seen:
        tensors.clear()
    assert seen.observation == Observation(())


def test_results_are_there_after_the_block_only() -> None:
    observer = observe()
    with pytest.raises(LowtideError, match="after its block"):
        _ = observer.peak_B
    with observer, pytest.raises(LowtideError, match="after its block"):
        _ = observer.events
    assert observer.peak_B == 0
    with pytest.raises(LowtideError, match="one block"):
        observer.__enter__()


def test_one_profiler_at_a_time() -> None:
    with observe() as outer:
        with pytest.raises(LowtideError, match="already running"), observe():
            pass
        tensor = torch.empty(10)
    assert outer.end_B == tensor.untyped_storage().nbytes()


def test_thousands_of_operators_with_their_backward() -> None:
    weight = torch.randn(64, 64, requires_grad=True)
    gc.collect()
    with observe() as seen:
        x = torch.ones(8, 64)
        for _ in range(500):
            x = torch.tanh(x @ weight)
        x.sum().backward()
        del x
    assert len(seen.events) > 3000
    assert weight.grad is not None
    assert seen.end_B == weight.grad.untyped_storage().nbytes()
    assert {e.thread for e in seen.events} == {seen.events[0].thread}


def test_nothing_is_written_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with observe():
        torch.empty(10)
    assert capfd.readouterr().err == ""


def test_events_inside_an_arena_are_the_same(arena: Arena) -> None:
    def work() -> list[int]:
        with observe() as seen:
            x = torch.ones(100, 100)
            y = torch.layer_norm(x, [100]).softmax(0)
            del x, y
        return [e.size_B for e in seen.events]

    plain = work()
    with arena.engaged():
        assert work() == plain


def test_worker_threads(module: ShimModule) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        q, k, v = (torch.randn(2, 4, 64, 16, requires_grad=True) for _ in range(3))
        loss = torch.nn.functional.scaled_dot_product_attention(q, k, v).sum()
        with observe() as seen:
            loss.backward()
    finally:
        torch.set_num_threads(threads)
    assert seen.sees_workers == (shim.loaded() is module)
    assert len({e.thread for e in seen.events}) == (2 if seen.sees_workers else 1)
