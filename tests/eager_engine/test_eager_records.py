"""Traces of programs that share their bytes: every value is there once, dies, and the trace replays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lowtide
from lowtide.device import eager_shim
from lowtide.eager_engine.policies.catalogue import policy_of
from lowtide.eager_engine.replay import replay
from lowtide.eager_engine.tape import load_tape
from lowtide.frontends.eager import RuntimeName
from lowtide.ir import trace_lines as lines

RUNTIMES: list[RuntimeName] = ["python", *(["compiled"] if not eager_shim.refusal() else [])]  # type: ignore[list-item]
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
    traces = []
    for runtime in RUNTIMES:
        file = tmp_path / f"{runtime}.jsonl"
        with lowtide.eager("1MiB", policy="tide", runtime=runtime, record=file):
            _program()
            torch.ones(1).sum()
            torch.ones(1).sum()
        traces.append(file.read_text(encoding="utf-8"))
        instructions = [instruction for _, instruction in lines.read_trace(file)]
        made = [line.name for line in instructions if isinstance(line, lines.Memory)]
        released = [line.name for line in instructions if isinstance(line, lines.Release)]
        assert sorted(made) == sorted(released)
        assert replay(load_tape(file), policy_of("tide"), 9 * SIZE * 4).refused is None
    assert traces[0] == traces[-1]
