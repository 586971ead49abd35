"""What `lowtide.eager` is given and cannot use is refused before anything is opened, with the remedy."""

from __future__ import annotations

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
    with lowtide.eager("1MiB", runtime="python", policy="lru"):
        assert torch.ones(3).sum().item() == 3
