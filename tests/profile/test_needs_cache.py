"""What optimizers need, kept on disk: the same answer, for torch's own classes alone, and no file that interferes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW

from lowtide.profile import needs_cache
from lowtide.profile.needs_cache import known_needs, needs_store, signature_of
from lowtide.profile.optimizer import OptimizerNeeds, optimizer_needs


def made(*shapes: tuple[int, ...]) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes or ((8, 4), (4,))]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the optimizers that are really tried."""
    count: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> OptimizerNeeds:
        count.append(1)
        return optimizer_needs(*args, **kwargs)

    monkeypatch.setattr(needs_cache, "optimizer_needs", counted)
    return count


def test_the_second_time_it_is_read(tmp_path: Path, tried: list[int]) -> None:
    first = known_needs(AdamW(made()), alignment_B=64, folder=tmp_path)
    assert known_needs(AdamW(made()), alignment_B=64, folder=tmp_path) == first
    assert len(tried) == 1
    assert first == optimizer_needs(AdamW(made()), alignment_B=64)


@pytest.mark.parametrize(
    "other",
    [
        lambda: AdamW(made((8, 5), (4,))),
        lambda: AdamW(made(), amsgrad=True),
        lambda: AdamW(made(), fused=True),
        lambda: SGD(made(), lr=0.1),
        lambda: AdamW([{"params": made()[:1]}, {"params": made()[1:]}]),
        lambda: AdamW([made()[0], made()[1].requires_grad_(False)]),
    ],
)
def test_what_differs_is_tried(tmp_path: Path, tried: list[int], other: Any) -> None:
    known_needs(AdamW(made()), folder=tmp_path)
    assert known_needs(other(), folder=tmp_path) == optimizer_needs(other())
    assert len(tried) == 2


def test_only_torchs_own_and_only_before_their_first_step() -> None:
    class Mine(AdamW):
        pass

    assert signature_of(Mine(made()), 1) is None
    optimizer = AdamW(made())
    assert signature_of(optimizer, 1) is not None
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.zeros_like(p)
    assert signature_of(optimizer, 1) is None
    optimizer.step()
    optimizer.zero_grad()
    assert signature_of(optimizer, 1) is None
    assert signature_of(AdamW(made(), lr=torch.tensor(0.1)), 1) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b'{"version": 9, "signature": "", "needs": 1}'])
def test_a_damaged_file_is_found_out_again(tmp_path: Path, tried: list[int], damage: bytes) -> None:
    first = known_needs(SGD(made(), lr=0.1, momentum=0.9), folder=tmp_path)
    (entry,) = needs_store(tmp_path).entries()
    entry.path.write_bytes(damage)
    for _ in range(2):
        assert known_needs(SGD(made(), lr=0.1, momentum=0.9), folder=tmp_path) == first
    assert len(tried) == 2


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert known_needs(SGD(made(), lr=0.1), folder=tmp_path / "file") is not None
