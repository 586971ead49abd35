"""Lets an optimizer's step allocate inside the wall, and brings its state home."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.hooks import RemovableHandle

from lowtide.runtime.homes import bring_home, state_tensors
from lowtide.runtime.wall import Wall

STEPPING = "the optimizer's step"


class OptimizerWatch:
    """Hooks on one optimizer, for as long as it is watched.

    Arguments:
        wall: gives the wall there is now.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, wall: Callable[[], Wall | None]) -> None:
        self._wall = wall
        self._known = 0  # entries of the state that are at home
        self._hooks: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(self._begin),
            optimizer.register_step_post_hook(self._end),
            optimizer.register_load_state_dict_post_hook(self.bring_home),
        ]

    def bring_home(self, optimizer: torch.optim.Optimizer) -> None:
        """Moves the optimizer's state to the wall's zone of homes."""
        wall = self._wall()
        if wall is not None:
            bring_home(state_tensors(optimizer), wall.arena)

    def close(self) -> None:
        """Leaves the optimizer as it was."""
        while self._hooks:
            self._hooks.pop().remove()

    def _begin(self, *_: object) -> None:
        wall = self._wall()
        if wall is not None:
            wall.rest(STEPPING)

    def _end(self, stepped: torch.optim.Optimizer, *_: object) -> None:
        wall = self._wall()
        if wall is None:
            return
        wall.wake()
        if len(stepped.state) != self._known:
            self._known = len(stepped.state)
            self.bring_home(stepped)
