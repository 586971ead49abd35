"""Reports gradients when they are complete, so that the engine moves them to a lasting place.

They are kept until the optimizer has read them; in the middle of the arena they would split its free bytes.

Units: none.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.utils.hooks import RemovableHandle


class Gradients:
    """Hooks on parameters, for as long as the context is open.

    Arguments:
        landed: is called with a gradient that was written, in the backward.
    """

    def __init__(self, landed: Callable[[Tensor], None]) -> None:
        self._landed = landed
        self._hooks: list[RemovableHandle] = []

    def watch(self, parameter: Tensor) -> None:
        """Has the parameter's gradients reported."""
        self._hooks.append(parameter.register_post_accumulate_grad_hook(self._accumulated))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Leaves parameters as they were."""
        while self._hooks:
            self._hooks.pop().remove()

    def _accumulated(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._landed(parameter.grad)
