"""Traces of programs that share their bytes: every value is there once, dies, and the trace replays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lowtide
from lowtide.device import shim
from lowtide.eager_engine.replay import compiled_replay
from lowtide.ir import trace_lines as lines
from lowtide.ir.tape import load_tape

pytestmark = pytest.mark.skipif(not shim.available(), reason="no arena here")
SIZE = 4096


def _program() -> None:
    shared = torch.ones(SIZE).cos()
    before = shared.sin()
    array = shared.numpy()
    between = shared * 2
    array[:] = 3
    after = shared * before
    from_elsewhere = torch.from_numpy(array.copy()) + after
    quantized = torch.quantize_per_tensor(from_elsewhere, 0.05, 10, torch.quint8)
    positive = torch.relu(quantized).dequantize()
    other = torch.utils.dlpack.from_dlpack(between)
    torch.ones(SIZE).add_(other).add_(positive)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_what_is_shared_is_recorded_once_and_dies(tmp_path: Path) -> None:
    file = tmp_path / "step.jsonl"
    with lowtide.eager("1MiB", policy="tide", record=file):
        _program()
        torch.ones(1).sum()
        torch.ones(1).sum()
    instructions = [instruction for _, instruction in lines.read_trace(file)]
    made = [line.name for line in instructions if isinstance(line, lines.Memory)]
    released = [line.name for line in instructions if isinstance(line, lines.Release)]
    assert sorted(made) == sorted(released)
    assert compiled_replay(load_tape(file), "tide", 9 * SIZE * 4).refused is None
