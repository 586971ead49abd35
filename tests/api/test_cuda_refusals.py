"""What is for CPU memory alone is refused in words where tensors lie on a GPU; here they are fake ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import lowtide
from lowtide.errors import BudgetError, EagerError


def on_a_gpu() -> nn.Linear:
    """A model whose tensors say that they lie on a GPU."""
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    with FakeTensorMode():
        model.weight = nn.Parameter(torch.empty(4, 4, device="cuda"))
    return model


def test_a_whole_step_on_a_gpu_places_nothing_on_the_host() -> None:
    model = on_a_gpu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(BudgetError, match=r"host_budget= of a TrainStep .* lies on cuda:0"):
        lowtide.TrainStep(model, nn.MSELoss(), optimizer, "1GiB", host_budget="1GiB")


def test_a_whole_step_whose_model_has_gone_to_a_gpu_is_refused() -> None:
    model = nn.Linear(4, 4)
    step = lowtide.TrainStep(
        model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), "1GiB", host_budget="1MiB"
    )
    model.weight = on_a_gpu().weight
    with pytest.raises(BudgetError, match="Leave host_budget= out"):
        step(torch.zeros(2, 4), torch.zeros(2, 4))


def test_eager_takes_no_model_on_a_gpu() -> None:
    with pytest.raises(EagerError, match=r"budget of CPU memory alone yet, .* lies on cuda:0"):
        lowtide.eager("1GiB", model=on_a_gpu())


def test_eager_refuses_the_first_operator_on_a_gpu() -> None:
    with lowtide.eager("64MiB"):
        with pytest.raises(
            RuntimeError, match=r"operator 'aten.empty.memory_format' has met cuda:0, and lowtide.eager keeps"
        ):
            torch.ops.aten.empty.memory_format([4], device=torch.device("cuda", 0))
        assert torch.equal(torch.ones(4) + 1, torch.full((4,), 2.0))
