"""How far a result may be from plain PyTorch's."""

from __future__ import annotations

import enum


class Numerics(enum.Enum):
    """What an implementation promises, and what a person asks for; each level admits those before it."""

    EXACT = "exact"  # the same bits
    REASSOCIATED = "reassociated"  # the same arithmetic, summed in another order
    LOSSY = "lossy"  # something is rounded away on purpose

    def admits(self, other: Numerics) -> bool:
        """Whether an implementation of the other level may be used where this one is asked for."""
        order = tuple(Numerics)
        return order.index(other) <= order.index(self)
