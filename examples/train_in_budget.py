"""Train a network inside half of the bytes it would take, and see that nothing else changed.

Run: python examples/train_in_budget.py
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import lowtide


class Classifier(nn.Module):
    """A convolutional network with batch norm and dropout; its loss is inside, so the plan spans the whole step."""

    def __init__(self) -> None:
        super().__init__()
        layers, channels = [], 3
        for width in (16, 16, 32, 32):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.GELU(), nn.Dropout(0.1)]
            channels = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(x).mean((2, 3))), y)


def train(model: nn.Module, steps: int = 3) -> list[float]:
    """An ordinary loop."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(steps):
        x, y = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


torch.manual_seed(0)
plain = Classifier()
fitted = lowtide.fit(copy.deepcopy(plain), budget="60% of plain")
plain_losses, fitted_losses = train(plain), train(fitted)
print(fitted.lowtide.plan)
print("plain ", plain_losses)
print("fitted", fitted_losses)
assert plain_losses == fitted_losses
assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), fitted.parameters(), strict=True))
