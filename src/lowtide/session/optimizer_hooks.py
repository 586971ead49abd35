"""Lets an optimizer's step allocate in the arena, and keeps its state in the zone of persistent storages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from lowtide.runtime.hard_budget import HardBudget
from lowtide.runtime.persistent_storages import bring_in, state_tensors

STEPPING = "the optimizer's step"


class OptimizerWatch:
    """Hooks on one optimizer, for as long as it is watched.

    Arguments:
        hard_budget: gives the present hard budget.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, hard_budget: Callable[[], HardBudget | None]) -> None:
        self._hard_budget = hard_budget
        self._known = 0  # entries of the state that lie in the zone
        self._hooks: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._begin),
            optimizer.register_step_post_hook(self._end),
            optimizer.register_load_state_dict_post_hook(self.bring_in),
        ]

    def bring_in(self, optimizer: torch.optim.Optimizer) -> None:
        """Relocates the optimizer's state to the arena's zone of persistent storages."""
        hard_budget = self._hard_budget()
        if hard_budget is not None:
            bring_in(state_tensors(optimizer), hard_budget.arena)

    def close(self) -> None:
        """Leaves the optimizer as it was."""
        while self._hooks:
            self._hooks.pop().remove()

    def _begin(
        self, _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._rest()
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            return None

        def step_of_the_model() -> Any:
            """Forward and backward are no part of the rest; what the optimizer does after them is."""
            self._wake()
            result = closure()
            self._rest()
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": step_of_the_model}
        return (args[0], step_of_the_model, *args[2:]), kwargs

    def _end(self, stepped: torch.optim.Optimizer, *_: object) -> None:
        self._wake()
        if self._hard_budget() is not None and len(stepped.state) != self._known:
            self._known = len(stepped.state)
            self.bring_in(stepped)

    def _rest(self) -> None:
        hard_budget = self._hard_budget()
        if hard_budget is not None:
            hard_budget.rest(STEPPING)

    def _wake(self) -> None:
        hard_budget = self._hard_budget()
        if hard_budget is not None:
            hard_budget.wake()
