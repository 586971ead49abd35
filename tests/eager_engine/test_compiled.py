"""The compiled runtime: the readable one's decisions, the bits of plain eager, and a sentence where it cannot be."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.device import eager_shim
from lowtide.eager_engine.compiled import CompiledRuntime
from lowtide.eager_engine.eager_stats import EagerStats
from lowtide.eager_engine.interpreted import InterpretedRuntime
from lowtide.eager_engine.policies.catalogue import POLICIES
from lowtide.eager_engine.tape import load_tape
from lowtide.errors import ShimUnavailable
from lowtide.frontends.eager import Eager, Runtime
from tests.eager_engine.comparison import Left, differences, train
from tests.eager_engine.networks import NETWORKS, EagerNetwork

WIDE_B = 2**28


@pytest.fixture(autouse=True)
def _compiled() -> None:
    """Every test needs the compiled modules."""
    assert eager_shim.refusal() == ""


class Passing(TorchDispatchMode):
    """Changes nothing, but where any mode is on autograd adds gradients up out of place: both see one program then."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def within(context: Eager) -> Iterator[None]:
    """The context, and the same operators whatever its runtime is."""
    with context, Passing():  # type: ignore[no-untyped-call]
        yield


def trained(name: str, runtime: Runtime) -> tuple[Left, EagerStats]:
    context = Eager(runtime, [], [])
    return train(NETWORKS[name], 2, inside=lambda *_: within(context)), context.stats()


SAME = ("calls", "cost_ns", "evictions", "evicted_B", "reruns", "rerun_ns", "moved_B", "retries", "steps", "digest")


def decided(network: EagerNetwork, runtime: Runtime, steps: int = 2) -> dict[str, Any]:
    """What a runtime decided in a few steps, and how it refused, if it did."""
    context, refused = Eager(runtime, [], []), ""
    module, optimizers = network.start()
    try:
        with within(context):
            for batch in network.batches(steps):
                network.step(module, optimizers, batch)
    except torch.OutOfMemoryError as error:
        refused = str(error)
    found = context.stats()
    return {"refused": refused} | {name: getattr(found, name) for name in SAME}


def tightly(name: str, policy: str, peak_B: int) -> tuple[int, Left, EagerStats]:
    """Trains within the first of some shares of a peak that is enough; gives the budget, and what training left.

    What is enough hangs on the workspaces of this processor's kernels; below, both runtimes say so in the same words.
    """
    for share in (0.7, 0.75, 0.8, 0.85):
        budget_B = int(peak_B * share)
        try:
            return budget_B, *trained(name, CompiledRuntime(budget_B, policy))
        except torch.OutOfMemoryError as error:
            refused = str(error)
        assert "no eviction helps" in refused
        with pytest.raises(torch.OutOfMemoryError, match=re.escape(refused)):
            trained(name, InterpretedRuntime(budget_B, POLICIES[policy]()))
    pytest.fail(f"{name} trains in no share of its peak of {peak_B} B")


@pytest.mark.parametrize(("name", "policy"), [("mlp", "coop"), ("unet", "tide"), ("branches", "coop")])
def test_both_runtimes_decide_alike_and_change_no_bit(name: str, policy: str) -> None:
    plain = train(NETWORKS[name], 2)
    left, wide = trained(name, CompiledRuntime(WIDE_B, policy))
    assert differences(plain, left) == []
    assert wide.evictions == 0
    budget_B, left, ours = tightly(name, policy, wide.peak_B)
    assert differences(plain, left) == []
    assert ours.peak_B <= budget_B
    assert ours.reruns > 0
    left, theirs = trained(name, InterpretedRuntime(budget_B, POLICIES[policy]()))
    assert differences(plain, left) == []
    assert {name: getattr(ours, name) for name in SAME} == {name: getattr(theirs, name) for name in SAME}


@pytest.mark.parametrize("policy", [name for name, kind in POLICIES.items() if kind.in_place])
@pytest.mark.parametrize(("name", "budget_B"), [("mlp", 1_200_000), ("resnet", 500_000)])
def test_every_policy_decides_alike_in_both_runtimes(name: str, budget_B: int, policy: str) -> None:
    ours = decided(NETWORKS[name], CompiledRuntime(budget_B, policy))
    assert ours["evictions"] > 0
    assert ours == decided(NETWORKS[name], InterpretedRuntime(budget_B, POLICIES[policy]()))


@pytest.mark.parametrize(
    ("name", "policy", "budget_B"), [("gan", "dtr-local", 522_278), ("mlp", "tide-memory", 1_675_699)]
)
def test_leaves_die_at_the_same_moment_in_both_runtimes(name: str, policy: str, budget_B: int) -> None:
    """Their bytes go when nobody reads them any more; what a step found, without them, is what it is rehearsed for."""
    ours = decided(NETWORKS[name], CompiledRuntime(budget_B, policy), 3)
    assert ours["evictions"] > 0
    assert ours == decided(NETWORKS[name], InterpretedRuntime(budget_B, POLICIES[policy]()), 3)


def test_both_runtimes_refuse_alike() -> None:
    budget_B = 200_000  # far below what any processor's kernels leave room for
    ours = decided(NETWORKS["resnet"], CompiledRuntime(budget_B, "dtr"))
    assert "no eviction helps" in ours["refused"]
    assert ours == decided(NETWORKS["resnet"], InterpretedRuntime(budget_B, POLICIES["dtr"]()))


def test_every_way_to_the_bytes_of_what_was_evicted() -> None:
    with Eager(CompiledRuntime(2**20, "lru"), [], []) as context:
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


def test_other_threads_let_go_of_storages_meanwhile() -> None:
    """They die in a thread that is not intercepted, while this one evicts, recovers and leaves the context."""
    stop, handed = threading.Event(), list[torch.Tensor]()

    def let_go() -> None:
        while not stop.is_set() or handed:
            while handed:
                handed.pop()
            torch.ones(1000).sum()

    thread = threading.Thread(target=let_go)
    thread.start()
    with Eager(CompiledRuntime(2**20, "coop"), [], []):
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
    with Eager(CompiledRuntime(2**20, "lru"), [], []) as context:
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
    with Eager(CompiledRuntime(2**20, "lru"), [], []) as context:
        assert draws() == plain
        assert context.stats().reruns > 0


def test_a_torch_without_the_key_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(eager_shim, "_found", None)
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(ShimUnavailable, match="eager training uses the runtime in Python"):
        eager_shim.load()


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ValueError, match="wishful"):
        CompiledRuntime(WIDE_B, "wishful")


@pytest.mark.parametrize("make", [CompiledRuntime, lambda size_B, name: InterpretedRuntime(size_B, POLICIES[name]())])
def test_calls_of_like_cost_per_byte_lie_side_by_side(
    make: Callable[[int, str], CompiledRuntime | InterpretedRuntime],
) -> None:
    with Eager(runtime := make(2**22, "coop"), [], []):
        x = torch.ones(256, 256)
        dear, cheap = [], []
        for _ in range(3):
            dear.append(x @ x)
            cheap.append(x + 1.0)
        offsets_B = [[t.data_ptr() - runtime.arena.slab.base for t in kind] for kind in (dear, cheap)]
    assert max(offsets_B[0]) < 2**21 < min(offsets_B[1][1:])


def test_room_is_made_before_kernels_once_it_is_known_what_they_ask_for() -> None:
    runtime = InterpretedRuntime(2**20, POLICIES["tide"]())
    relieved = 0

    def relieve(size_B: int) -> bool:
        nonlocal relieved
        relieved += 1
        return runtime._kernels.relieve(size_B)

    counts = []
    with Eager(runtime, [], []) as context:
        runtime.arena.set_pressure(relieve)
        for _ in range(3):
            chain = [torch.full((30000,), 0.5)]
            for _ in range(12):
                chain.append(chain[-1] * 1.5)
            assert sum(float(t[7]) for t in chain) == sum(0.5 * 1.5**i for i in range(13))
            counts.append((relieved, context.stats().evictions))
            del chain
    assert counts[0][0] > 0
    assert counts[2][0] == counts[1][0]
    assert counts[2][1] > counts[1][1]


@pytest.mark.parametrize(("name", "budget_B"), [("mlp", 2**20), ("unet", WIDE_B)])
def test_both_runtimes_record_the_same_trace(name: str, budget_B: int, tmp_path: Path) -> None:
    def recorded(runtime: Runtime, file: Path) -> str:
        trained(name, runtime)
        return file.read_text(encoding="utf-8")

    ours, theirs = tmp_path / "compiled.jsonl", tmp_path / "python.jsonl"
    compiled = CompiledRuntime(budget_B, "tide", record=ours)
    assert recorded(compiled, ours) == recorded(InterpretedRuntime(budget_B, POLICIES["tide"](), record=theirs), theirs)
    assert len(load_tape(ours, in_place=True).events) > 100
