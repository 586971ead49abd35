"""Steps in order: run a recipe, drop a value, copy bytes, pass a boundary.

Steps are issued in order; a step on another engine than "compute" runs concurrently with what follows it. Nothing is
implied: a value occupies its memory from the step that brings it there to the step that drops it.
"""

from __future__ import annotations

import msgspec

DEVICE = "device"
HOST = "host"
HOST_ENGINE = "host"  # computes on values in host memory; every other engine on values on the device


def memory_of(engine: str) -> str:
    """The memory in which recipes of an engine read and write."""
    return HOST if engine == HOST_ENGINE else DEVICE


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Run a recipe; of its outputs only `keep` are kept, the others die with the step.

    `after` lists indices of earlier steps on other engines that must have finished first.
    """

    recipe: int
    keep: tuple[int, ...]
    after: tuple[int, ...] = ()


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    """Free the bytes of a value in one memory, once the steps of `after` on other engines have finished."""

    value: int
    memory: str = DEVICE
    after: tuple[int, ...] = ()


class Send(msgspec.Struct, frozen=True, tag="send"):
    """Copy a value from the device to `memory`; the device copy is kept until dropped.

    A value that replaces another (`Value.replaces`) is written into that one's storage.
    """

    value: int
    memory: str
    after: tuple[int, ...] = ()


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Copy a value from `memory` back to the device; the copy there is kept until dropped."""

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
