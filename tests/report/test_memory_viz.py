"""The file that torch's memory viewer opens."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.cuda import _memory_viz

import lowtide
from lowtide.errors import LowtideError


@pytest.fixture(scope="module")
def fitted() -> nn.Module:
    model, x = (
        nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(128, 128), nn.GELU()))),
        torch.randn(256, 128),
    )
    lowtide.fit(model, budget="110% of plain", optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    model(x).mean().backward()
    return model


def test_torchs_own_viewer_reads_it(fitted: nn.Module, tmp_path: Path) -> None:
    held = lowtide.snapshot(fitted, tmp_path / "arena.pickle")
    raw = (tmp_path / "arena.pickle").read_bytes()
    assert max(op.proto for op, _, _ in pickletools.genops(raw)) <= 4
    data = pickle.loads(raw)
    (segment,) = data["segments"]
    assert segment["total_size"] == lowtide.memory_stats(fitted).arena_B == sum(b["size"] for b in segment["blocks"])
    assert sum(b["state"] == "active_allocated" for b in segment["blocks"]) == len(held) > 0
    assert "segments: 1" in _memory_viz.segsum(data)
    assert "cudaMalloc" in _memory_viz.trace(data)
    assert "MemoryViz" in _memory_viz.trace_plot(data)


def test_the_timeline_is_the_plan(fitted: nn.Module, tmp_path: Path) -> None:
    lowtide.snapshot(fitted, tmp_path / "arena.pickle")
    (events,) = pickle.loads((tmp_path / "arena.pickle").read_bytes())["device_traces"]
    live: dict[int, int] = {}
    most_B = 0
    for event in events:
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"]) == event["size"]
        most_B = max(most_B, sum(live.values()))
    plan = fitted.lowtide.plan
    assert 0.9 * plan.peak_B <= most_B <= plan.reserved_B
    assert [e["time_us"] for e in events] == sorted(e["time_us"] for e in events)


def test_without_an_arena_there_is_nothing_to_write(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    lowtide.fit(model, budget="1GiB")
    with pytest.raises(LowtideError, match="no arena to write"):
        lowtide.snapshot(model, tmp_path / "arena.pickle")
