"""The state of a random generator before an operator drew from it, so that running the operator again draws the same.

Units: none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from lowtide.device.arena import nothing_engaged


class Draw(msgspec.Struct, frozen=True):
    """Where a generator stood.

    Arguments:
        generator: the default one of the CPU, or the one that the operator was given.
        state: of it; its bytes lie outside every arena.
    """

    generator: torch.Generator
    state: torch.Tensor

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Inside, the generator goes on from where it stood; afterwards it is where it was."""
        with nothing_engaged():
            present = self.generator.get_state()
        self.generator.set_state(self.state)
        try:
            yield
        finally:
            self.generator.set_state(present)

    def rewind(self) -> None:
        """Puts the generator back to where it stood: what has been drawn since was drawn in vain."""
        self.generator.set_state(self.state)


def draw(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Draw:
    """Where the generator stands from which an operator with these arguments is about to draw."""
    given = next((a for a in (*kwargs.values(), *args) if isinstance(a, torch.Generator)), None)
    generator = torch.default_generator if given is None else given
    with nothing_engaged():
        return Draw(generator, generator.get_state())
