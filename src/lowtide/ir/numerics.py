"""How far a result may be from plain PyTorch's."""

from __future__ import annotations

import enum

from lowtide.errors import NumericsError


class Numerics(enum.Enum):
    """What an implementation promises, and what a user asks for; each level admits those before it."""

    EXACT = "exact"  # the same bits
    REASSOCIATED = "reassociated"  # the same arithmetic, summed in another order
    LOSSY = "lossy"  # something is rounded away on purpose

    def admits(self, other: Numerics) -> bool:
        """Whether an implementation of the other level may be used where this one is asked for."""
        order = tuple(Numerics)
        return order.index(other) <= order.index(self)


def parse_numerics(text: str | Numerics) -> Numerics:
    """Reads a level.

    Arguments:
        text: `"exact"`, `"reassociated"` or `"lossy"`.

    Raises:
        NumericsError: if it is something else.
    """
    if isinstance(text, Numerics):
        return text
    found = next((level for level in Numerics if level.value == text), None)
    if found is None:
        levels = ", ".join(repr(level.value) for level in Numerics)
        raise NumericsError(f"numerics={text!r} is no level: write one of {levels}")
    return found
