"""Networks for a GPU whose machine has torch alone: made here, trained on made-up data.

A batch is the same whoever asks for it, and losses are made inside the model, so that every way of training runs the same
program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Subject:
    """A network, its batches, and how it is trained.

    Arguments:
        make: the network, its weights from the seed that is set.
        batch: the arguments of one call, by number.
        tokens: of one batch, or images.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[int, str], tuple[Tensor, ...]]
    tokens: int


class _WithLoss(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.body(x).flatten(0, -2), y.flatten())


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.first(x)).split(c, 2))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class _Gpt(nn.Module):
    def __init__(self, layers: int, width: int, words: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, max(1, width // 64)) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        here = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.words(x) + self.places(here))))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.body(x))


def _mlp(size: int) -> Subject:
    width, rows = 64 * size, 128 * size
    body = lambda: nn.Sequential(  # noqa: E731
        *(layer for _ in range(6) for layer in (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))),
        nn.Linear(width, 10),
    )

    def batch(number: int, device: str) -> tuple[Tensor, ...]:
        draw = torch.Generator().manual_seed(number)
        x, y = torch.randn(rows, width, generator=draw), torch.randint(0, 10, (rows,), generator=draw)
        return x.to(device), y.to(device)

    return Subject(lambda: _WithLoss(body()), batch, rows)


def _gpt(layers: int, width: int, words: int, length: int, rows: int) -> Subject:
    def batch(number: int, device: str) -> tuple[Tensor, ...]:
        draw = torch.Generator().manual_seed(number)
        return tuple(torch.randint(0, words, (rows, length), generator=draw).to(device) for _ in range(2))

    return Subject(lambda: _WithLoss(_Gpt(layers, width, words, length)), batch, rows * length)


def _convolutions(channels: int, blocks: int, extent: int, rows: int) -> Subject:
    def make() -> nn.Module:
        stem = (nn.Conv2d(3, channels, 3, padding=1), nn.MaxPool2d(2))
        end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
        return _WithLoss(nn.Sequential(*stem, *(_Residual(channels) for _ in range(blocks)), *end))

    def batch(number: int, device: str) -> tuple[Tensor, ...]:
        draw = torch.Generator().manual_seed(number)
        x, y = torch.randn(rows, 3, extent, extent, generator=draw), torch.randint(0, 10, (rows,), generator=draw)
        return x.to(device), y.to(device)

    return Subject(make, batch, rows)


SUBJECTS: dict[str, Any] = {
    "mlp": lambda quick: _mlp(1 if quick else 16),
    "gpt": lambda quick: _gpt(1, 64, 100, 16, 2) if quick else _gpt(12, 768, 50_304, 1024, 8),
    "convolutions": lambda quick: _convolutions(8, 1, 16, 4) if quick else _convolutions(64, 16, 112, 128),
}
