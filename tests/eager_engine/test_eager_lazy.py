"""Tensors that are read conjugated or negated, while their bytes are not, within a budget."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide
from lowtide.device import shim

pytestmark = pytest.mark.skipif(not shim.available(), reason="no arena here")

USES: dict[str, Callable[[Tensor], Tensor]] = {
    "conjugated": lambda x: torch.complex(x, x + 1).conj() * 2,
    "negated": lambda x: torch.complex(x, x + 1).conj().imag * 2,
    "written": lambda x: torch.complex(x, x + 1).conj().mul_(3).resolve_conj(),
}


def _norm(x: Tensor) -> Tensor:
    z = torch.complex(x, x * 2).detach().requires_grad_()
    (found,) = torch.autograd.grad((z * z.conj()).real.sum(), z)
    return found


def test_lazy_tensors_are_rematerialised_as_they_were() -> None:
    x = torch.arange(65536.0).reshape(64, 1024)
    plain = [use(x) for use in (*USES.values(), _norm)]
    with lowtide.eager("6MiB", policy="lru") as run:
        for use, expected in zip(USES.values(), plain, strict=False):
            kept = torch.complex(x, x + 1)
            views = {"conjugated": kept.conj(), "negated": kept.conj().imag}
            for _ in range(3):  # drives what is kept out
                rest = [torch.sin(x) for _ in range(20)]
                del rest
            assert torch.equal(views["negated"] * 2, (x + 1) * -2)
            assert torch.equal(views["conjugated"].resolve_conj().imag, views["negated"])
            del kept, views
            assert torch.equal(use(x), expected)
        assert torch.equal(_norm(x), plain[-1])
    assert run.stats().recomputations
