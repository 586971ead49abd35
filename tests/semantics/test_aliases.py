"""What is changed in place, and what shares bytes with something else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.semantics.pairs import Wide, batches, gradients, same, steps


class InPlace(nn.Module):
    """In-place operators of every kind, on results, on views of them, and through indices."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("history", torch.zeros(256, 32), persistent=False)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        self.count[1:] += 1
        self.history.mul_(0.9).add_(h.detach(), alpha=0.1)
        self.history.addcmul_(h.detach(), h.detach(), value=0.3).addcdiv_(h.detach(), h.detach().cosh(), value=0.7)
        a = self.layers[0](h)
        a[:, ::2] *= 0.5
        a[a > 1] = 1.0
        F.relu(a, inplace=True)
        b = self.layers[1](a).add_(self.history).mul_(2)
        left, right = b[:, :16], b.narrow(1, 16, 16)
        left.add_(1)
        right.copy_(left * 0.5)
        b.masked_fill_(b < -1, -1.0).clamp_(max=2.0)
        c = torch.zeros_like(b)
        c.index_add_(0, torch.arange(256).flip(0), b)
        c.scatter_add_(1, torch.arange(32).expand(256, 32), h)
        c.t()[3].zero_()
        return F.leaky_relu_(self.layers[2](c)) + F.elu(c.clone(), inplace=True) + F.hardtanh_(c * 1.5)


class Aliased(nn.Module):
    """Outputs that are views: of an input, of each other, of a parameter; an input itself; one tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Wide(nn.Identity())
        self.table = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("fixed", torch.ones(5))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        h = torch.tanh(self.inner.first(x))
        y = h * 2
        return {
            "loss": self.inner(x), "input": x, "input view": x[:, 2:5], "y": y, "y view": y.view(-1),
            "row": (h * 3)[3], "parameter": self.table, "parameter view": self.table.t()[1:], "buffer": self.fixed,
            "buffer view": self.fixed[1:], "twice": (h, h), "detached": y.detach(),
        }  # fmt: skip


class ChangesItsInput(nn.Module):
    """Overwrites what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Wide(nn.Identity())

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        loss = self.inner(x * 1)
        x.mul_(0.5)
        seen[2:4] += x[:2, :4]
        return loss + self.inner(x * 2)


def test_operators_in_place() -> None:
    same(lambda: Wide(InPlace()), steps())


@pytest.mark.filterwarnings(
    "ignore:code outside lowtide's graphs:lowtide.BudgetWarning"
)  # the first loss is one of many
def test_outputs_that_are_views() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for x in batches(2):
            out = module(x)
            assert out["input"] is x
            assert out["parameter"] is module.table
            assert out["buffer"] is module.fixed
            assert out["input view"].data_ptr() == x[:, 2:5].data_ptr()
            assert out["parameter view"].data_ptr() == module.table[:, 1:].data_ptr()
            assert out["buffer view"].data_ptr() == module.fixed[1:].data_ptr()
            assert out["y view"].data_ptr() == out["y"].data_ptr() == out["detached"].data_ptr()
            assert out["twice"][0].data_ptr() == out["twice"][1].data_ptr()
            assert not out["detached"].requires_grad
            (
                out["loss"] + out["parameter view"].sum() + out["row"].sum() + out["y view"][5] + out["twice"][0].sum()
            ).backward()
            kept = {k: v for k, v in out.items() if k not in ("parameter", "loss")}
            seen += [torch.utils._pytree.tree_map(lambda t: t.detach().clone(), kept), gradients(module)]
            module.zero_grad()
            del out, kept
        return seen

    same(Aliased, scenario, spare=0.6, recomputes=False, rehearsed=True)


def test_a_view_of_an_output_changed_by_the_caller() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        x = batches(1)[0]
        out = module(x)
        before = out["y"][0, 0].item()
        with torch.no_grad():
            out["detached"][0, 0] += 1
        assert out["y"][0, 0].item() == pytest.approx(before + 1)
        out["buffer view"].add_(1)
        return [module.fixed.clone(), out["y"].detach().clone()]

    same(Aliased, scenario, spare=1.0, recomputes=False)


def test_inputs_that_are_overwritten() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        found: list[Any] = []
        seen = torch.zeros(8, 4)
        for x in batches():
            x = x.clone()
            loss = module(x, seen)
            loss.backward()
            found += [loss.detach(), x, seen.clone(), gradients(module)]
            module.zero_grad()
        return found

    same(ChangesItsInput, scenario)
