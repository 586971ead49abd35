"""A model with its loss as one module: what a whole training step captures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Objective(torch.nn.Module):
    """Gives the loss of a batch.

    Arguments:
        model: called with the batch, without its targets.
        loss: called with the model's result and the targets; None where the model gives the loss itself.
        targets: how many of the batch's last tensors are for the loss.
        autocast: dtype of the region round both; None for none.
        device: torch device type of that region.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Callable[..., torch.Tensor] | None,
        targets: int,
        autocast: torch.dtype | None,
        device: str,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.targets = targets
        self.autocast = autocast
        self.device = device

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The loss."""
        if self.autocast is None:
            return self._loss(args, kwargs)
        with torch.autocast(self.device, self.autocast):
            return self._loss(args, kwargs)

    def _loss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        if self.loss is None:
            return _loss_in(self.model(*args, **kwargs))
        count = len(args) - self.targets
        return self.loss(self.model(*args[:count], **kwargs), *args[count:])


def _loss_in(result: Any) -> torch.Tensor:
    """The loss that a model gives: its result, or what is called so in it."""
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, dict):
        return result["loss"]  # type: ignore[no-any-return]
    return result.loss  # type: ignore[no-any-return]
