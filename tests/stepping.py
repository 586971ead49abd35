"""Training by a plain loop and by whole steps, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from tests.networks import Network

Make = Callable[[nn.Module], torch.optim.Optimizer]


class Batchwise(nn.Module):
    """A network of `tests.networks` called with one batch: the result holds the loss."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.body = network.build()

    def forward(self, batch: Any) -> Any:
        return self.network.outputs(self.body, batch)


def perceptron() -> nn.Module:
    """Dropout, batch norm, and layers of different sizes, from a fixed seed."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(32, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 5),
    )  # fmt: skip


def batches(count: int, size: int = 24) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches for the perceptron."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 12, generator=generator), torch.randint(5, (size,), generator=generator))
        for _ in range(count)
    ]


@dataclass
class Trained:
    """What training leaves: losses, the model's tensors, the optimizer's state, the generator."""

    losses: list[torch.Tensor]
    tensors: dict[str, torch.Tensor]
    state: dict[int, dict[str, Any]]
    generator: torch.Tensor = field(default_factory=torch.get_rng_state)

    @staticmethod
    def of(losses: Sequence[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> Trained:
        """A copy of it."""
        tensors = {k: v.clone() for k, v in model.state_dict().items()}
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        state = {i: _copied(optimizer.state[p]) for i, p in enumerate(parameters) if p in optimizer.state}
        return Trained(list(losses), tensors, state)

    def apart(self, other: Trained) -> list[str]:
        """Names what is not equal to the last bit."""
        found = [f"loss {i}" for i, (a, b) in enumerate(zip(self.losses, other.losses, strict=True)) if not same(a, b)]
        found += [k for k in self.tensors | other.tensors if not same(self.tensors[k], other.tensors[k])]
        if self.state.keys() != other.state.keys():
            return [*found, f"state of {sorted(self.state)} and of {sorted(other.state)}"]
        for i, mine in self.state.items():
            theirs = other.state[i]
            found += [f"state {i} {k}" for k in mine | theirs if k not in mine or not same(mine[k], theirs.get(k))]
        return found if same(self.generator, other.generator) else [*found, "generator"]


def same(a: Any, b: Any) -> bool:
    """Whether two tensors, or numbers, are equal, dtype included."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}


def plainly(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Sequence[tuple[Any, ...]],
    *,
    loss_fn: Callable[..., torch.Tensor] | None = F.cross_entropy,
    clip: Callable[[Any], Any] | None = None,
    accumulate: int = 1,
    after: Callable[[], Any] | None = None,
) -> Trained:
    """The loop that people write."""
    torch.manual_seed(7)
    losses = []
    for number, batch in enumerate(data, 1):
        loss = model(*batch) if loss_fn is None else loss_fn(model(*batch[:-1]), batch[-1])
        loss = loss if isinstance(loss, torch.Tensor) else loss.loss
        loss.backward()
        losses.append(loss.detach())
        if number % accumulate == 0 or number == len(data):
            if clip is not None:
                clip(model.parameters())
            optimizer.step()
            optimizer.zero_grad()
        if after is not None:
            after()
    return Trained.of(losses, model, optimizer)


def wholly(
    step: lowtide.TrainStep,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Sequence[tuple[Any, ...]],
    after: Callable[[], Any] | None = None,
) -> Trained:
    """The same by whole steps."""
    torch.manual_seed(7)
    losses = []
    for batch in data:
        losses.append(step(*batch))
        if after is not None:
            after()
    step.flush()
    return Trained.of(losses, model, optimizer)
