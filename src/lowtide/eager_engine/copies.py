"""What a call that is run again must not write over, since others still need it: it writes to copies.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lowtide.eager_engine.bodies import bytes_of

Storage = torch.UntypedStorage


class Copies:
    """See the module. Every try has fresh ones, so that one that failed may have written to its own.

    Arguments:
        given: the storages of the call's inputs; copies stand among them while there are any.
        places: of those that are to be copied.
    """

    def __init__(self, given: list[Storage], places: Sequence[int]) -> None:
        self._given = given
        self._originals = list(given)
        self._places = places

    @property
    def sizes_B(self) -> tuple[int, ...]:
        """What they take."""
        return tuple(self._originals[place].nbytes() for place in self._places)

    def make(self) -> None:
        """Makes them; the allocator may find no room."""
        for place in self._places:
            original = self._originals[place]
            made = torch.empty(original.nbytes(), dtype=torch.uint8, device="cpu")
            self._given[place] = made.copy_(bytes_of(original)).untyped_storage()

    def undo(self) -> None:
        """Lets go of them: another try makes others."""
        self._given[:] = self._originals

    def end(self) -> None:
        """Lets go of everything: the traceback of an error would keep the bytes."""
        self._given.clear()
        self._originals.clear()
