"""A machine as data: memories, links, engines.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second, `_flops` floating-point operations per second.
"""

from __future__ import annotations

import math

import msgspec


class Memory(msgspec.Struct, frozen=True):
    """A place for bytes. `capacity_B` None means unlimited; allocations are rounded up to `granule_B`."""

    name: str
    capacity_B: int | None = None
    granule_B: int = 64


class Engine(msgspec.Struct, frozen=True):
    """Something that runs one step at a time."""

    name: str


class Link(msgspec.Struct, frozen=True):
    """A one-way connection between memories, driven by an engine."""

    source: str
    target: str
    engine: str
    rate_Bps: float
    latency_s: float = 0.0


class Machine(msgspec.Struct, frozen=True):
    """A device with what surrounds it.

    Arguments:
        memories: the first one is the device's.
        engines: the first one computes.
        flops: peak arithmetic per dtype, for the roofline predictor; "float32" is required for prediction.
        traffic_Bps: bandwidth between the device's memory and its arithmetic.
        launch_s: least time of one operator.
    """

    name: str
    memories: tuple[Memory, ...] = (Memory("device"), Memory("host"))
    engines: tuple[Engine, ...] = (Engine("compute"), Engine("to_host"), Engine("from_host"))
    links: tuple[Link, ...] = ()
    flops: dict[str, float] = {}
    traffic_Bps: float = 0.0
    launch_s: float = 0.0


def nonsense(machine: Machine) -> str:
    """Says what of a machine cannot be; empty where everything can. Links: `lowtide.ir.check_claims.check_link`."""
    if not machine.memories or not machine.engines:
        return "it has no memory, or no engine"
    for memory in machine.memories:
        if memory.granule_B < 1 or (memory.capacity_B is not None and memory.capacity_B < 1):
            return f"its memory {memory.name!r} has no bytes, or a granule of none"
    for name, number in (("traffic_Bps", machine.traffic_Bps), ("launch_s", machine.launch_s)):
        if not (math.isfinite(number) and number >= 0):
            return f"{name} is {number!r}"
    for dtype, flops in machine.flops.items():
        if not (math.isfinite(flops) and flops > 0):
            return f"its flops for {dtype!r} are {flops!r}"
    return ""
