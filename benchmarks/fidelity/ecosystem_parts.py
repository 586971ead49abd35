"""Networks of the ecosystem's table that no library brings: written as their users write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tests.networks import UNet
from torch import nn


def unet(width: int, depth: int) -> nn.Module:
    """Encoder and decoder with skip connections, three classes."""
    return UNet(width=width, depth=depth)


class LstmLanguageModel(nn.Module):
    """Embedding, two LSTM layers with dropout between them, a linear decoder; from word_language_model of torch's examples."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.dropout = nn.Dropout(0.5)
        self.recurrent = nn.LSTM(width, width, 2, dropout=0.5)
        self.decoder = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.dropout(self.embedding(tokens)))
        return self.decoder(self.dropout(hidden))


class MixtureOfExperts(nn.Module):
    """Top-2 routing with a fixed capacity per expert: every expert takes the tokens that want it most.

    With a capacity all sizes are known before the step; tokens beyond it pass by, as in Switch Transformers
    (Fedus et al. 2021).
    """

    def __init__(self, width: int, hidden: int, experts: int, chosen: int = 2, slack: float = 1.25) -> None:
        super().__init__()
        self.chosen, self.slack = chosen, slack
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self.norm(x).flatten(0, 1)
        odds = self.router(tokens).softmax(-1)
        best, expert = odds.topk(self.chosen, dim=-1)
        wanted = torch.zeros_like(odds).scatter(1, expert, best)
        capacity = int(self.slack * self.chosen * len(tokens) / odds.shape[1])
        weight, index = wanted.t().topk(capacity, dim=1)
        taken = tokens[index]
        done = F.gelu(taken @ self.up) @ self.down * weight.unsqueeze(-1)
        mixed = torch.zeros_like(tokens).index_add(0, index.flatten(), done.flatten(0, 1))
        share = F.one_hot(expert[:, 0], odds.shape[1]).to(odds.dtype).mean(0)
        return x + mixed.view_as(x), odds.shape[1] * (share * odds.mean(0)).sum()


class LowRank(nn.Module):
    """A frozen layer and a trained low-rank addition to it (LoRA, Hu et al. 2021)."""

    def __init__(self, base: nn.Module, width: int, out: int, rank: int = 8) -> None:
        super().__init__()
        self.base = base
        self.dropout = nn.Dropout(0.05)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2.0 * self.up(self.down(self.dropout(x)))


def with_lora(model: nn.Module) -> nn.Module:
    """GPT-2 with everything frozen but a low-rank addition to each attention's projection."""
    model.requires_grad_(False)
    for block in model.transformer.h:
        width, out = block.attn.c_attn.weight.shape
        block.attn.c_attn = LowRank(block.attn.c_attn, width, out)
    return model


def with_frozen(model: nn.Module, *names: str) -> nn.Module:
    """Some parts of a network frozen, as for fine-tuning."""
    for name in names:
        model.get_submodule(name).requires_grad_(False)
    return model
