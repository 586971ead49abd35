"""Recurrent layers are captured as the operators that eager runs, where torch's own capture rounds differently."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowtide
from tests.networks import differences, train, twin


class Layers(nn.Module):
    """Two layers with dropout between them, which torch's own decomposition forgets."""

    def __init__(self, kind: type[nn.RNNBase], **options: bool) -> None:
        super().__init__()
        self.layers = kind(8, 16, num_layers=2, dropout=0.5, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0].square().mean()


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True}], ids=["one way", "both ways"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_training_is_unchanged(kind: type[nn.RNNBase], options: dict[str, bool]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Layers(kind, **options)
    fitted = lowtide.fit(twin(plain), budget="1MiB", work=1_000)
    batches = [torch.randn(5, 3, 8) for _ in range(2)]
    expected = train(plain, lambda m, x: m(x), batches)
    assert differences(expected, train(fitted, lambda m, x: m(x), batches)) == []
    assert lowtide.misplaced_allocations(fitted) == ()
    with torch.no_grad():
        torch.manual_seed(3)
        alone = plain(batches[0])
        torch.manual_seed(3)
        assert torch.equal(alone, fitted(batches[0]))


class Cells(nn.Module):
    """A cell that is called step by step, of a width at which a row of gates is no whole number of vectors."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = kind(40, 48)  # type: ignore[call-arg]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, outputs = None, []
        for step in x:
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs).square().mean()


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_train_unchanged(kind: type[nn.RNNCellBase]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = Cells(kind)
    fitted = lowtide.fit(twin(plain), budget="1MiB", work=1_000)
    batches = [torch.randn(5, 4, 40) for _ in range(2)]
    expected = train(plain, lambda m, x: m(x), batches)
    assert differences(expected, train(fitted, lambda m, x: m(x), batches)) == []
