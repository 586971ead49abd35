"""The same in torch's own words: `torch.compile` with a backend and a budget.

Run: python examples/torch_compile.py
"""

import torch
import torch.nn.functional as F
from torch import nn

import lowtide


class Net(nn.Module):
    """Three layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), 0.1)
        return x.square().mean()


net = Net()
compiled = torch.compile(net, backend="lowtide", options={"budget": "90% of plain"})
for _ in range(3):
    loss = compiled(torch.randn(128, 64))
    loss.backward()
    print(loss.item())

try:
    torch._dynamo.reset()
    torch.compile(net, backend="lowtide", options={"budget": "16KiB"})(torch.randn(128, 64))
except lowtide.InfeasibleBudget as error:
    print(error)
