"""Zero bytes that have an address and cost no memory until somebody writes to them.

They are anonymous pages of the system, for which no memory is set aside: reading one shows zeros, and only a write
brings a page into being. Units: `_B` bytes.
"""

from __future__ import annotations

import mmap
import sys

import torch

from lowtide.errors import LowtideError

# Python names the flag from 3.13 on; on Linux it has this value on every architecture that torch supports.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def untouched(size_B: int) -> torch.Tensor:
    """A tensor of zero bytes on the CPU that takes address space alone, however many they are.

    Arguments:
        size_B: how many.

    Returns: uint8, of one dimension. Its storage is not torch's own: it can neither grow nor be moved.

    Raises:
        LowtideError: if the system refuses that much address space (`ulimit -v`, strict overcommitment).
    """
    if size_B == 0:
        return torch.empty(0, dtype=torch.uint8)
    try:
        pages = mmap.mmap(-1, size_B, **_private())
    except (OSError, OverflowError, ValueError) as error:
        raise LowtideError(
            f"the system refuses {size_B:,} B of address space ({error}), of which nothing would be used: raise "
            "`ulimit -v`, or set vm.overcommit_memory to 0 or 1"
        ) from error
    return torch.frombuffer(pages, dtype=torch.uint8)


def _private() -> dict[str, int]:
    """Flags of the mapping, where the system has them."""
    if sys.platform == "win32":
        return {}
    return {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE}
