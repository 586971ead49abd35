"""Networks written here, as people write their own: recurrent, sparse, partly frozen."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.networks import Network
from tests.zoo.inputs import sequences, vectors

_VOCABULARY = 50


class Recurrent(nn.Module):
    """A language model on a recurrent layer of torch."""

    def __init__(self, kind: type[nn.RNNBase], bidirectional: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, 16)
        self.layers = kind(16, 24, num_layers=2, dropout=0.2, batch_first=True, bidirectional=bidirectional)
        self.out = nn.Linear(24 * (1 + bidirectional), _VOCABULARY)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        h = self.embedding(tokens)
        if lengths is not None:
            h, _ = self.layers(pack_padded_sequence(h, lengths, batch_first=True))
            h, _ = pad_packed_sequence(h, batch_first=True, total_length=tokens.shape[1])
        else:
            h, _ = self.layers(h)
        return F.cross_entropy(self.out(h[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class Experts(nn.Module):
    """A classifier whose vectors go to the two best of four experts: how many each gets depends on the data."""

    def __init__(self, experts: int = 4, width: int = 16) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in range(experts)
        )
        self.out = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, which = torch.where(chosen == index)
            mixed = mixed.index_add(0, rows, expert(x[rows]) * weights[rows, which, None])
        return F.cross_entropy(self.out(x + mixed), y)


class DenseExperts(Experts):
    """The same with every expert on every vector, and weights of zero for those not chosen: sizes are fixed."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        gates = torch.zeros(x.shape[0], len(self.experts)).scatter(1, chosen, weights)
        mixed = sum(expert(x) * gates[:, i, None] for i, expert in enumerate(self.experts))
        return F.cross_entropy(self.out(x + mixed), y)


class Adapted(nn.Module):
    """A frozen linear layer with a small trainable update of low rank beside it."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + F.linear(F.linear(F.dropout(x, 0.1, self.training), self.down), self.up)


class Transformer(nn.Module):
    """torch's own encoder layers as a language model; the base is frozen but for adapters, or but for the end."""

    def __init__(self, adapters: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).requires_grad_(False)
        self.embedding.requires_grad_(False)
        self.out = nn.Linear(16, _VOCABULARY)
        if adapters:
            self.out.requires_grad_(False)
            for block in self.body.layers:
                block.linear1, block.linear2 = Adapted(block.linear1), Adapted(block.linear2)
        else:
            self.body.layers[-1].requires_grad_(True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        h = self.body(self.embedding(tokens), mask=mask, is_causal=True)
        return F.cross_entropy(self.out(h[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


NETWORKS = (
    Network("lstm", lambda: Recurrent(nn.LSTM), lambda m, b: m(b), sequences()),
    Network("lstm-two-ways", lambda: Recurrent(nn.LSTM, bidirectional=True), lambda m, b: m(b), sequences()),
    Network("lstm-packed", lambda: Recurrent(nn.LSTM), lambda m, b: m(b, torch.tensor([12, 9, 9, 5])), sequences()),
    Network("gru", lambda: Recurrent(nn.GRU), lambda m, b: m(b), sequences()),
    Network("rnn", lambda: Recurrent(nn.RNN), lambda m, b: m(b), sequences()),
    Network("experts", Experts, lambda m, b: m(*b), vectors()),
    Network("dense-experts", DenseExperts, lambda m, b: m(*b), vectors()),
    Network("lora", lambda: Transformer(adapters=True), lambda m, b: m(b), sequences()),
    Network("last-layers", lambda: Transformer(adapters=False), lambda m, b: m(b), sequences()),
)
