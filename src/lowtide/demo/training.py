"""One side of the demo: a model in training, whose steps can be counted, observed and timed.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch

from lowtide.demo.text import Batches
from lowtide.device.clock import once_s
from lowtide.device.observer import Observation, observe

Watch = Callable[[int, float], None]


class Training:
    """A model, its optimizer and its batches.

    Arguments:
        model: called as `model(input_ids=x, labels=x)`, returns something with a `loss`.
        optimizer: over the model's parameters.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: Batches) -> None:
        self.model, self.optimizer, self.batches = model, optimizer, batches

    def gradients(self, batch: torch.Tensor) -> torch.Tensor:
        """Forward and backward from empty gradients; returns the loss, detached."""
        self.optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = self.model(input_ids=batch, labels=batch).loss
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self, index: int) -> float:
        """One optimizer step on the batch of that index; returns the loss, every bit of it."""
        loss = self.gradients(self.batches[index])
        self.optimizer.step()
        return float(loss)

    def train(self, steps: int, seed: int, watch: Watch) -> tuple[float, ...]:
        """Steps 0 to `steps` - 1 with the global generator seeded first.

        Arguments:
            watch: told the step and its loss after each.
        """
        torch.manual_seed(seed)
        losses: list[float] = []
        for index in range(steps):
            losses.append(self.step(index))
            watch(index, losses[-1])
        return tuple(losses)

    def observe(self, index: int) -> tuple[int, Observation]:
        """Allocator events of one forward and backward.

        Returns: the bytes of parameters, buffers and the batch, which are there before, and what happened then.
        """
        batch = self.batches[index]
        self.optimizer.zero_grad(set_to_none=True)
        level_B = self.resident_B(batch)
        with observe() as seen:
            self.gradients(batch)
        return level_B, seen.observation

    def resident_B(self, *more: torch.Tensor) -> int:
        """Bytes of the distinct storages of parameters, buffers and `more`."""
        tensors = chain(self.model.parameters(), self.model.buffers(), more)
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())

    def state_B(self) -> int:
        """Bytes of the optimizer's state."""
        states = (v for state in self.optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor))
        return sum(v.untyped_storage().nbytes() for v in states)

    def time_s(self, index: int) -> float:
        """Seconds of one optimizer step."""
        return once_s(lambda: self.step(index))

    def snapshot(self) -> dict[str, list[torch.Tensor]]:
        """Copies of what training changes: parameters, buffers, optimizer state, generator."""
        states = [v for _, s in sorted(self.optimizer.state_dict()["state"].items()) for v in s.values()]
        return {
            "parameters": [p.detach().clone() for p in self.model.parameters()],
            "buffers": [b.detach().clone() for b in self.model.buffers()],
            "gradients": [p.grad.clone() for p in self.model.parameters() if p.grad is not None],
            "optimizer states": [s.clone() for s in states if isinstance(s, torch.Tensor)],
            "generator states": [torch.get_rng_state()],
        }


def equal_states(ours: dict[str, list[torch.Tensor]], plain: dict[str, list[torch.Tensor]]) -> dict[str, bool]:
    """Per name, whether the tensors are as many and bitwise equal, one by one."""
    return {
        name: len(ours[name]) == len(tensors) and all(map(torch.equal, ours[name], tensors))
        for name, tensors in plain.items()
        if tensors
    }
