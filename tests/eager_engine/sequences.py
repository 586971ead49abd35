"""Readers of sequences, and a network that looks at its data to know what to do next."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Reader(nn.Module):
    """A bidirectional LSTM with dropout between its layers; the class of a sentence from its mean."""

    def __init__(self, vocabulary: int, width: int, hidden: int, layers: int, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, words: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(words))
        return F.cross_entropy(self.head(states.mean(1)), y)


class Lengths(nn.Module):
    """Transformer layers over sentences of any length up to 512, dropout on."""

    def __init__(self, vocabulary: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(512, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, words: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.embedding(words) + self.position(torch.arange(words.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return F.cross_entropy(self.head(h.mean(1)), y)


class Branches(nn.Module):
    """Goes on until its state is small, through layers that the state chooses; a buffer counts the rounds."""

    def __init__(self, width: int, classes: int = 5) -> None:
        super().__init__()
        self.positive, self.negative = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, classes)
        self.register_buffer("rounds", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x
        for _ in range(8):
            if h.abs().mean().item() < 0.2:
                break
            chosen = self.positive if h.sum().item() > 0 else self.negative
            h = F.dropout(torch.tanh(self.norm(chosen(h))), 0.1) * 0.8
            h[:, ::2].mul_(0.9)
            self.rounds += 1
        return F.cross_entropy(self.head(h), y)
