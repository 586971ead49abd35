"""What lay in the arena when there was no room: what an out-of-memory error says. Torch-free.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Set

import msgspec

from lowtide.eager_engine.ledger import Ledger
from lowtide.eager_engine.room import AbstractRoom
from lowtide.units import format_B


class Shortage(msgspec.Struct, frozen=True):
    """A request that found no room, and who had the bytes then.

    Arguments:
        need_B: asked for.
        homes_B: parameters, gradients and optimizer state.
        stepped_B: made by an optimizer's step, and not at home yet: new state, or temporaries.
        kept_B: inputs, and what cannot be made again any more.
        read_B: what running operators read, and can be made again.
        made_B: what can be made again, and stayed: giving it up made no hole of that size.
        own_B: of nobody that is known: results and workspaces of the operator that runs.
        free_B, hole_B: in all, and in one piece.
    """

    need_B: int
    homes_B: int
    stepped_B: int
    kept_B: int
    read_B: int
    made_B: int
    own_B: int
    free_B: int
    hole_B: int

    def text(self, budget_B: int, name: str) -> str:
        """In words.

        Arguments:
            name: of the operator that asked; empty: code between operators.
        """
        who = f"'{name}'" if name else "code between operators"
        return (
            f"lowtide: the budget of {format_B(budget_B)} is too small here: {who} asked for {format_B(self.need_B)} "
            f"({self.need_B} B), and no eviction helps. Then {format_B(self.homes_B)} were parameters, gradients and "
            f"optimizer state; {format_B(self.stepped_B)} what an optimizer's step has made; {format_B(self.kept_B)} "
            "inputs, and what cannot be made again since a parameter was written; "
            f"{format_B(self.read_B)} what operators that run read; {format_B(self.made_B)} what can be made again; "
            f"{format_B(self.own_B)} the operator's own results and workspaces; {format_B(self.free_B)} were free, "
            f"{format_B(self.hole_B)} of them in one piece. Raise the budget, make the batch smaller, or let go of "
            "tensors of earlier steps."
        )


def shortage(
    ledger: Ledger, room: AbstractRoom, need_B: int, hole_B: int, stepped: Set[int], shared_B: int
) -> Shortage:
    """Who has the bytes now. O(values).

    Arguments:
        stepped: ids of values that an optimizer's step has made.
        shared_B: in the room, beside a copy that is a value's.
    """
    homes_B = stepped_B = read_B = made_B = 0
    kept_B = shared_B
    for value in ledger.values.values():
        if not value.resident:
            continue
        if value.home:
            homes_B += value.size_B
        elif value.id in stepped:
            stepped_B += value.size_B
        elif value.call is None:
            kept_B += value.size_B
        elif value.pins:
            read_B += value.size_B
        else:
            made_B += value.size_B
    own_B = max(0, room.in_use_B - homes_B - stepped_B - kept_B - read_B - made_B)
    return Shortage(need_B, homes_B, stepped_B, kept_B, read_B, made_B, own_B, room.free_B, hole_B)
