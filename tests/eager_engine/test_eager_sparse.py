"""Tensors that are made of others: sparse and nested ones read storages that an operator's arguments do not show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import lowtide
from lowtide.device import shim

pytestmark = [
    pytest.mark.skipif(not shim.available(), reason="no arena here"),
    pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:The PyTorch API of nested:UserWarning"),
]


def _sparse_gradients() -> list[torch.Tensor]:
    torch.manual_seed(0)
    words = nn.Embedding(1000, 16, sparse=True)
    head = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    rows, dense = torch.optim.SparseAdam(words.parameters()), torch.optim.SGD(head.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = head(words(torch.randint(1000, (3000,)))).square().mean()
        loss.backward()
        for optimizer in (rows, dense):
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, words.weight.detach().clone(), *(p.detach().clone() for p in head.parameters())]


def _kept_sparse() -> list[torch.Tensor]:
    """Sparse and nested tensors wait for longer than their parts live."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 256, generator=generator)
    indices = torch.stack([torch.arange(40), torch.arange(40) + 1])
    coo = torch.sparse_coo_tensor(indices, x.sin(), (40, 41, 256))
    csr = (x * (x > 0.5)).to_sparse_csr()
    nested = torch.nested.as_nested_tensor([x[:9] + 1.0, x[9:] * 2.0])
    chain = [x]
    for _ in range(30):
        chain.append(torch.cos(chain[-1]) * 1.1)
    # the chain is alive until here, and more than the budget
    return [coo.to_dense().sum(1), csr.to_dense(), nested.to_padded_tensor(0.0), chain[7].clone(), chain[-1]]


@pytest.mark.parametrize("step", [_sparse_gradients, _kept_sparse])
def test_parts_of_tensors_are_rematerialised(step: Callable[[], list[torch.Tensor]]) -> None:
    plain = step()
    with lowtide.eager("64MiB") as wide:
        step()
    evictions = 0
    for share in (0.9, 0.8, 0.7, 0.66, 0.62, 0.5):
        context = lowtide.eager(int(wide.stats().peak_B * share))
        try:
            with context:
                found = step()
        except torch.OutOfMemoryError:  # an honest answer; any other error is none
            found = plain
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
        evictions += context.stats().evictions
    assert evictions > 0
