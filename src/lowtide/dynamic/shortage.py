"""What lay in the arena when there was no room: what an out-of-memory error says. Torch-free.

Units: `_B` bytes.
"""

from __future__ import annotations

import msgspec

from lowtide.dynamic.ledger import Ledger
from lowtide.dynamic.room import AbstractRoom
from lowtide.units import format_B


class Shortage(msgspec.Struct, frozen=True):
    """A request that found no room, and who had the bytes then.

    Arguments:
        need_B: asked for.
        homes_B: parameters, gradients and optimizer state.
        kept_B: inputs, and what cannot be made again any more.
        read_B: what running operators read, and can be made again.
        made_B: what can be made again and still found nobody to give way to: it fences nothing off, or is reached no more.
        own_B: of nobody that is known: results and workspaces of the operator that runs.
        free_B, hole_B: in all, and in one piece.
    """

    need_B: int
    homes_B: int
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
            f"({self.need_B} B), and nothing more can be evicted. Then {format_B(self.homes_B)} were parameters, gradients "
            f"and optimizer state; {format_B(self.kept_B)} inputs, and what cannot be made again since a parameter was "
            f"written; {format_B(self.read_B)} what the operator reads; {format_B(self.own_B)} its own results and "
            f"workspaces; {format_B(self.free_B)} were free, {format_B(self.hole_B)} of them in one piece. Raise the "
            "budget, make the batch smaller, or let go of tensors of earlier steps."
        )


def shortage(ledger: Ledger, room: AbstractRoom, need_B: int, hole_B: int) -> Shortage:
    """Who has the bytes now. O(values)."""
    homes_B = kept_B = read_B = made_B = 0
    for value in ledger.values.values():
        if not value.resident:
            continue
        if value.home:
            homes_B += value.size_B
        elif value.call is None:
            kept_B += value.size_B
        elif value.pins:
            read_B += value.size_B
        else:
            made_B += value.size_B
    own_B = max(0, room.in_use_B - homes_B - kept_B - read_B - made_B)
    return Shortage(need_B, homes_B, kept_B, read_B, made_B, own_B, room.free_B, hole_B)
