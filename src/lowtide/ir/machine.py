"""Where bytes can live and what can move or compute: memories, links, engines.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second, `_flops` floating-point operations per second.
"""

from __future__ import annotations

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
