"""What `lowtide.eager` is given and cannot use is refused before anything is opened, with the remedy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import lowtide


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"model": 3}, lowtide.EagerError, "model=3 is no torch.nn.Module"),
        ({"model": [torch.nn.ReLU(), "gpt"]}, lowtide.EagerError, "is no torch.nn.Module"),
        ({"optimizer": torch.nn.ReLU()}, lowtide.OptimizerError, "step"),
        ({"optimizer": 0.1}, lowtide.OptimizerError, "step"),
        ({"policy": "coop-no-in-place"}, lowtide.EagerError, "lowtide replay"),
        ({"policy": "fifo"}, lowtide.EagerError, "tide-memory"),
    ],
)
def test_wrong_arguments_name_the_remedy(given: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        lowtide.eager("1MiB", **given)


def test_a_record_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with (
        pytest.raises(lowtide.EagerError, match="cannot be written"),
        lowtide.eager("1MiB", record=tmp_path / "no" / "x"),
    ):
        pass
    with lowtide.eager("1MiB", policy="lru"):
        assert torch.ones(3).sum().item() == 3


REFUSED = """
import torch
import lowtide
from lowtide.errors import ShimUnavailable

model = torch.nn.Linear(4, 4)
where = model.weight.data_ptr()
try:
    lowtide.eager("1MiB", model=model, host_budget="1MiB", record="step.jsonl")
except ShimUnavailable as error:
    print(error)
assert model.weight.data_ptr() == where
assert torch.equal(torch.ones(3).sum(), torch.tensor(3.0))
"""


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"PATH": "", "CXX": ""}, r"no C\+\+ compiler was found.* install one .*apt install g\+\+.* or name it in CXX"),
        ({"LOWTIDE_SHIM": "0"}, "LOWTIDE_SHIM=0 keeps lowtide's memory arena out: unset it"),
    ],
    ids=["no compiler", "kept out"],
)
def test_without_compiled_code_it_is_refused_before_anything_changes(
    setting: dict[str, str], says: str, tmp_path: Path
) -> None:
    environment = os.environ | {"LOWTIDE_CACHE_DIR": str(tmp_path / "cache"), "LOWTIDE_SHIM_DIR": ""} | setting
    done = subprocess.run(
        [sys.executable, "-c", REFUSED], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.match("lowtide.eager runs on compiled code, which cannot be had here: " + says, done.stdout), done.stdout
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("first", ["lowtide", "lowtide.eager_engine.runtime", "lowtide.ir.tape", "lowtide.api.eager"])
def test_it_is_the_function_whatever_is_imported_first(first: str) -> None:
    """A folder of the engine that was called `eager` would take its place."""
    code = f"""
import {first}
import lowtide
before = lowtide.eager
import lowtide.api.eager, lowtide.eager_engine.replay, lowtide.eager_engine.runtime
from lowtide import eager
assert lowtide.eager is before is eager is lowtide.api.eager.eager
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
