"""The engine behind `lowtide.eager`: access to evicted bytes, threads, failures, and errors where it cannot be had."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from lowtide.api.eager import Eager
from lowtide.device import eager_shim
from lowtide.eager_engine.eager_stats import EagerStats
from lowtide.eager_engine.runtime import EagerRuntime
from lowtide.errors import ShimUnavailable
from tests.eager_engine.comparison import train
from tests.eager_engine.networks import NETWORKS

WIDE_B = 2**28


@pytest.fixture(autouse=True)
def _compiled() -> None:
    """Every test needs the compiled modules."""
    assert eager_shim.refusal() == ""


def test_every_access_to_the_bytes_of_what_was_evicted() -> None:
    with Eager(EagerRuntime(2**20, "lru"), [], []) as context:
        base = torch.arange(30000, dtype=torch.float32)
        chain = [base * 2]
        for _ in range(12):
            chain.append(chain[-1] + 1)
        assert context.stats().evictions > 0
        assert [t[5].item() for t in chain] == [10.0 + i for i in range(13)]
        assert chain[0].numpy()[7] == 14.0
        assert chain[1].tolist()[8] == 17.0
        del chain[4:]
    assert [float(t[5]) for t in chain] == [10.0 + i for i in range(4)]


def test_other_threads_release_storages_meanwhile() -> None:
    """They die in a thread that is not intercepted, while this one evicts, recovers and leaves the context."""
    stop, handed = threading.Event(), list[torch.Tensor]()

    def let_go() -> None:
        while not stop.is_set() or handed:
            while handed:
                handed.pop()
            torch.ones(1000).sum()

    thread = threading.Thread(target=let_go)
    thread.start()
    with Eager(EagerRuntime(2**20, "coop"), [], []):
        x = torch.full((20000,), 1.0)
        for _ in range(100):
            y = x * 2
            handed.extend((y + 1, y + 2))
            z = y * 3
            assert float((z - y)[3]) == 4.0
        while len(handed) > 3:
            stop.wait(0.001)
        stop.set()
    thread.join()


def test_a_failed_operator_leaves_it_usable() -> None:
    with Eager(EagerRuntime(2**20, "lru"), [], []) as context:
        x = torch.ones(1000) * 2
        with pytest.raises(RuntimeError, match="must match"):
            x + torch.ones(7)
        with pytest.raises(torch.OutOfMemoryError, match="no eviction helps"):
            torch.ones(2**20)
        assert float((x + 1).sum()) == 3000.0
        assert context.stats().budget_B == 2**20


def test_random_numbers_are_drawn_once() -> None:
    def draws() -> list[float]:
        torch.manual_seed(7)
        noise = [torch.rand(30000) * 1.5 for _ in range(12)]
        return [float(t[9]) for t in noise] + [float(torch.rand(1))]

    plain = draws()
    with Eager(EagerRuntime(2**20, "lru"), [], []) as context:
        assert draws() == plain
        assert context.stats().recomputations > 0


def test_a_torch_without_the_key_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(eager_shim, "_found", None)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(ShimUnavailable, match=r"use torch 2\.11 to 2\.13"):
        eager_shim.load()


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match="wishful"):
        EagerRuntime(WIDE_B, "wishful")


def test_calls_of_like_cost_per_byte_lie_side_by_side() -> None:
    with Eager(runtime := EagerRuntime(2**22, "coop"), [], []):
        x = torch.ones(256, 256)
        dear, cheap = [], []
        for _ in range(3):
            dear.append(x @ x)
            cheap.append(x + 1.0)
        offsets_B = [[t.data_ptr() - runtime.arena.slab.base for t in kind] for kind in (dear, cheap)]
    assert max(offsets_B[0]) < 2**21 < min(offsets_B[1][1:])


def test_bytes_are_freed_before_kernels_once_it_is_known_what_they_ask_for() -> None:
    """A kernel that its own argument fences is run twice, until it is known what it asks for: then that moves first."""
    unit, retries = 2**14, []
    with Eager(EagerRuntime(21 * unit * 4 // 2, "tide"), [], []) as context:
        for _ in range(4):
            before = torch.ones(3 * unit)  # is evicted; the argument lies next to it, in the middle
            x = torch.ones(4 * unit)
            x *= torch.ones(4 * unit, dtype=torch.bool)  # the kernel makes numbers of it
            retries.append(context.stats().retries)
            assert float(x.sum()) == 4 * unit
            del before, x
    assert 0 < retries[1] == retries[2] == retries[3]


@pytest.mark.parametrize("name", ["mlp", "unet"])
def test_a_trace_is_the_same_whatever_is_evicted(name: str, tmp_path: Path) -> None:
    def recorded(budget_B: int) -> tuple[str, EagerStats]:
        file = tmp_path / f"{budget_B}.jsonl"
        context = Eager(EagerRuntime(budget_B, "tide", record=file), [], [])
        train(NETWORKS[name], 2, inside=lambda *_: context)
        return file.read_text(encoding="utf-8"), context.stats()

    trace, free = recorded(2**28)
    again, tight = recorded(int(0.8 * free.peak_B))
    assert tight.recomputations > 0
    assert again == trace
