"""What to do, in order: run a recipe, drop a value, move bytes, pass a boundary.

Steps are issued in order; a step on another engine than "compute" runs beside what follows it. Nothing is
implied: a value occupies its memory from the step that brings it there to the step that drops it.
"""

from __future__ import annotations

import msgspec

DEVICE = "device"


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Run a recipe; of its outputs only `keep` stay, the others die with the step.

    `after` lists indices of earlier steps on other engines that must have finished first.
    """

    recipe: int
    keep: tuple[int, ...]
    after: tuple[int, ...] = ()


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Give up the bytes of a value in one memory."""

    value: int
    memory: str = DEVICE


class Send(msgspec.Struct, frozen=True, tag="send"):
    """Copy a value from the device to `memory`; the device copy stays until dropped."""

    value: int
    memory: str
    after: tuple[int, ...] = ()


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Copy a value from `memory` back to the device; the copy there stays until dropped."""

    value: int
    memory: str
    after: tuple[int, ...] = ()


class Boundary(msgspec.Struct, frozen=True, tag="boundary"):
    """Segment `segment` begins here; the one before it, if any, has returned to the caller.

    At its end a segment hands over the values that leave there, and at its start the values that arrive there
    are resident. The first step of every schedule is `Boundary(0)`.
    """

    segment: int


Step = Run | Drop | Send | Fetch | Boundary


class Schedule(msgspec.Struct, frozen=True):
    """Steps in issue order."""

    steps: tuple[Step, ...]
