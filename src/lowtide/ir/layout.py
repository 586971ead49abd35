"""Addresses: one offset per residency of a value. Units: `_B` bytes."""

from __future__ import annotations

import msgspec


class Residency(msgspec.Struct, frozen=True):
    """One stay of a value in a memory: it holds its bytes in steps [start, stop)."""

    value: int
    start: int
    stop: int
    size_B: int
    engine: str = "compute"


class Placement(msgspec.Struct, frozen=True):
    """A residency and the offset of its first byte."""

    residency: Residency
    offset_B: int


class Layout(msgspec.Struct, frozen=True):
    """Where every residency lies; `height_B` is what has to be reserved."""

    placements: tuple[Placement, ...]
    height_B: int
