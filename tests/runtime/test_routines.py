"""Layers written once: the same bits, the same allocations in the same order, code that hardly grows."""

from __future__ import annotations

import gc
import linecache

import pytest
import torch

import lowtide
from lowtide.device import shim
from lowtide.device.observer import observe
from lowtide.runtime import routines
from tests.networks import Network, ResidualNet, differences, gpt2, train, twin


def _images(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    dice = torch.Generator().manual_seed(1)
    return [(torch.randn(2, 3, 8, 8, generator=dice), torch.randint(0, 5, (2,), generator=dice)) for _ in range(count)]


def _tokens(count: int) -> list[torch.Tensor]:
    dice = torch.Generator().manual_seed(1)
    return [torch.randint(0, 97, (2, 16), generator=dice) for _ in range(count)]


NETWORKS = {
    "residual": Network("residual", lambda: ResidualNet(6), lambda m, b: m(*b), _images),
    "gpt2": Network("gpt2", lambda: gpt2(3), lambda m, b: m(input_ids=b, labels=b), _tokens),
}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def _sources() -> dict[str, str]:
    """The generated code of this process, by the name that tracebacks show."""
    return {name: "".join(linecache.getlines(name)) for name in list(linecache.cache) if name.startswith("<lowtide")}


def _step(network: Network, fitted: torch.nn.Module) -> list[int]:
    """Sizes of a step's allocations and releases, in order."""
    batch = network.batches(1)[0]
    for _ in range(2):  # the first one plans
        with observe() as seen:
            network.loss(fitted, batch).backward()  # type: ignore[no-untyped-call]
        fitted.zero_grad()
    return [e.size_B for e in seen.events]


@pytest.mark.parametrize(
    ("name", "share"),
    [("residual", 1.0), ("residual", 0.8), ("gpt2", 0.8), pytest.param("gpt2", 1.0, marks=pytest.mark.breadth)],
)
def test_training_and_allocations_are_those_of_the_straight_line(
    name: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = NETWORKS[name]
    plain = network.build()
    budget = f"{share:.0%} of plain"
    expected = train(twin(plain), network.loss, network.batches(2))
    seen, written = [], []
    for least in (routines.LEAST_RUNS, 10**9):
        monkeypatch.setattr(routines, "LEAST_RUNS", least)
        torch._dynamo.reset()
        before = _sources()
        fitted = lowtide.fit(twin(plain), budget=budget, work=5_000)
        assert differences(expected, train(fitted, network.loss, network.batches(2))) == []
        seen.append(_step(network, fitted))
        written.append([text for file, text in _sources().items() if file not in before])
        if shim.available():
            assert lowtide.memory_stats(fitted).misplaced_allocations == 0
    assert seen[0] == seen[1]
    if share == 1:
        assert any("def layer0(" in text for text in written[0])
    assert not any("def layer0(" in text for text in written[1])


def test_what_a_layer_drops_dies_inside_it() -> None:
    """The caller hands values over in a list that is emptied, and forgets those that die in it."""
    network = NETWORKS["residual"]
    before = _sources()
    fitted = lowtide.fit(network.build(), budget="100% of plain", work=1_000)
    network.loss(fitted, network.batches(1)[0]).backward()  # type: ignore[no-untyped-call]
    backward = next(t for f, t in _sources().items() if f not in before and "def backward(" in t)
    lines = [line.strip() for line in backward.splitlines()]
    called = next(i for i, line in enumerate(lines) if "layer0(_, " in line)
    assert lines[called - 2].startswith("_ = [")
    assert lines[called - 1].startswith("del v")
    assert lines[lines.index("def layer0(values, at):") + 2] == "values.clear()"


def test_depth_adds_calls_alone() -> None:
    lines = []
    for layers in (6, 12):
        torch._dynamo.reset()
        before = _sources()
        fitted = lowtide.fit(ResidualNet(layers), budget="100% of plain", work=1_000)
        fitted(*_images(1)[0]).backward()
        found = [t for f, t in _sources().items() if f not in before]
        assert sum(text.count("= layer0(") for text in found) >= 2 * (layers - 2)
        lines.append(sum(text.count("\n") for text in found))
    assert lines[1] < 1.2 * lines[0]


def test_generated_code_is_forgotten_with_its_plan() -> None:
    before = set(_sources())
    fitted = lowtide.fit(ResidualNet(1), budget="100% of plain", work=1)
    fitted(*_images(1)[0]).backward()
    assert set(_sources()) - before
    lowtide.unfit(fitted)
    del fitted
    torch._dynamo.reset()
    gc.collect()
    assert set(_sources()) <= before


def test_halves_of_a_layer_that_the_plan_treats_unlike_the_others() -> None:
    """At a tight budget hardly two layers are treated alike; what they have in common is still written once."""
    images = (torch.randn(16, 3, 32, 32), torch.randint(0, 5, (16,)))
    before = _sources()
    fitted = lowtide.fit(ResidualNet(8), budget="60% of plain", work=1)
    fitted(*images).backward()
    found = [t for f, t in _sources().items() if f not in before]
    assert sum(text.count("= layer") for text in found) > sum(text.count("def layer") for text in found) > 0
