"""Packed sequences: operators that are made of others hold the address of their lengths while those run."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import lowtide
from lowtide.api.eager import Eager
from lowtide.device import shim
from lowtide.eager_engine.eager_stats import EagerStats
from tests.eager_engine.comparison import differences, train
from tests.eager_engine.networks import EagerNetwork, descend, sgd

pytestmark = pytest.mark.skipif(not shim.available(), reason="no arena here")
_WORDS, _SENTENCES = 14, 16


class Packed(nn.Module):
    """An LSTM over sentences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 16, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(32, 5)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embedding(words), lengths, batch_first=True)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return F.cross_entropy(self.head(states.mean(1)), lengths % 5)


def _sentences(generator: torch.Generator, number: int) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG001
    lengths = torch.randint(3, _WORDS + 1, (_SENTENCES,), generator=generator).sort(descending=True).values
    return torch.randint(0, 50, (_SENTENCES, _WORDS), generator=generator), lengths


def squeezed(network: EagerNetwork, share: float, policy: str) -> EagerStats:
    """Two steps where everything fits, then in a share of what these held; both leave the bits of plain eager."""
    runs: list[Eager] = []

    def inside(module: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...]) -> Eager:
        budget_B = int(share * runs[0].stats().peak_B) if runs else 2**28
        runs.append(lowtide.eager(budget_B, policy=policy, model=module, optimizer=optimizers))
        return runs[-1]

    plain = train(network, 2)
    for _ in range(2):
        assert not differences(plain, train(network, 2, inside))
    return runs[1].stats()


def test_bits_of_packed_sequences() -> None:
    network = EagerNetwork("packed", Packed, sgd, _sentences, descend)
    assert squeezed(network, 0.9, "tide").recomputations > 0


def test_sequences_that_were_packed_outside() -> None:
    """Their lengths are met inside, and the persistent zone grows around them."""
    lengths = torch.tensor([9, 7, 4, 2])

    def step() -> torch.Tensor:
        torch.manual_seed(3)
        lstm = nn.LSTM(8, 16, 2)
        packed = pack_padded_sequence(torch.randn(9, 4, 8), lengths)
        with lowtide.eager(2**26) if is_inside else contextlib.nullcontext():
            states, _ = pad_packed_sequence(lstm(packed)[0])
            states.square().mean().backward()
        gradient = lstm.weight_ih_l0.grad
        assert gradient is not None
        return gradient

    is_inside = False
    plain = step()
    is_inside = True
    assert torch.equal(plain, step())


class Packs(nn.Module):
    """Layers over packed words: nothing but the backward of packing reads its lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        h = pack_padded_sequence(self.embedding(words), lengths, batch_first=True).data
        for layer in self.layers:
            h = torch.tanh(layer(h))
        return h.square().mean()


def test_the_backward_of_packing() -> None:
    network = EagerNetwork("packs", Packs, sgd, _sentences, descend)
    assert squeezed(network, 0.8, "lru").evictions > 0
