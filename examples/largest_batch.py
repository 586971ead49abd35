"""The largest batch inside a budget, found by planning and tried with one step; and whether a model fits a card.

Run: python examples/largest_batch.py
"""

import torch
import torch.nn.functional as F
from torch import nn

import lowtide


class Classifier(nn.Module):
    """A small convolutional network with its loss inside."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(layer for _ in range(3) for layer in (nn.LazyConv2d(16, 3, padding=1), nn.LazyBatchNorm2d(), nn.GELU()))
        )
        self.head = nn.LazyLinear(10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(x).mean((2, 3))), y)


def batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model is called with at batch size n."""
    return torch.randn(n, 3, 16, 16), torch.randint(0, 10, (n,))


model = Classifier()
model(*batch(2))  # lazy layers learn their sizes
optimizer = torch.optim.AdamW(model.parameters())

found = lowtide.max_batch(batch, model, "4MiB", optimizer=optimizer, multiple_of=8, overhead_limit=0.5)
print(found)
for tried in found.tried:
    print(f"  {tried.size:4d} {'fits' if tried.fits else 'does not fit'} ({tried.how}, {tried.seconds_s:.1f} s)")
assert found.verified
assert found.size >= found.plain_size

fitted = lowtide.fit(model, plan=found.plan, optimizer=optimizer)  # nothing is planned again
fitted(*batch(found.size)).backward()
optimizer.step()
print("trained one step:", fitted.lowtide.plan)

with torch.device("meta"):  # a network without bytes: no memory is needed to ask about it
    large = nn.TransformerEncoder(nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True), 4)
    tokens = torch.empty(8, 1024, 2048)
for device in ("rtx3080", "h100"):
    print(lowtide.fits(large, (tokens,), device=device, optimizer=torch.optim.AdamW(large.parameters())))
