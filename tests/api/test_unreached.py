"""Parameters behind an output that takes no part in the loss get no gradient, as in eager: None, not zeros."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lowtide


class Heads(nn.Module):
    """A shared body, a head whose output is used, and others that may not be."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.breaks = breaks
        self.body, self.main, self.side = nn.Linear(32, 64), nn.Linear(64, 8), nn.Linear(64, 8)
        self.register_buffer("seen", torch.zeros(64))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.body(x).relu()
        self.seen.add_(h.detach().mean(0))
        side = self.side(h)
        if self.breaks:
            torch._dynamo.graph_break()
        return {"main": self.main(h), "side": side, "view": side.view(-1), "index": h.argmax(-1)}


def _train(model: nn.Module, use: tuple[str, ...]) -> list[torch.Tensor | None]:
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    found: list[torch.Tensor | None] = []
    for _ in range(3):
        optimizer.zero_grad()
        out = model(torch.randn(64, 32))
        sum(out[name].square().mean() for name in use).backward()
        found += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
    return [*found, *(p.detach().clone() for p in model.parameters()), model.seen.clone()]


@pytest.mark.parametrize("use", [("main",), ("side",), ("view",), ("main", "view")], ids="+".join)
@pytest.mark.parametrize("breaks", [False, True], ids=["whole", "broken"])
def test_unused_outputs_give_no_gradient(use: tuple[str, ...], breaks: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Heads(breaks)
    fitted = lowtide.fit(copy.deepcopy(plain), budget="200% of plain", work=1_000)
    for a, b in zip(_train(plain, use), _train(fitted, use), strict=True):
        assert (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))


def test_so_does_torch_compile() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain, ours = Heads(), Heads()
    ours.load_state_dict(plain.state_dict())
    ours.compile(backend="lowtide", options={"budget": "200% of plain", "work": 1_000})
    for a, b in zip(_train(plain, ("main",)), _train(ours, ("main",)), strict=True):
        assert (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
