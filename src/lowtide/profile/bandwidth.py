"""How fast bytes move between a device and the host: per direction, alone and during compute. Measured once, cached.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from lowtide.device.arena import nothing_engaged
from lowtide.device.copies import CopyEngine, Happening
from lowtide.device.engines import Engines
from lowtide.device.fingerprint import fingerprint
from lowtide.ir.machine import Link
from lowtide.ir.schedule import DEVICE, HOST
from lowtide.profile.cache import ProfileCache

_BUFFER_B = 2**25
_COPIES = 4
_TINY = 15
_DIGITS = 2  # that are worth remembering: a plan is not to be made anew for the others
_WIDTH = 256  # of the matrices that are multiplied meanwhile


@dataclass(frozen=True)
class Bandwidth:
    """What a link does.

    Arguments:
        to_host_Bps, from_host_Bps: while nothing else runs.
        to_host_busy_Bps, from_host_busy_Bps: while the device computes.
        latency_s: of a copy of nothing, from when it is asked for until it is known to be done.
    """

    to_host_Bps: float
    from_host_Bps: float
    to_host_busy_Bps: float
    from_host_busy_Bps: float
    latency_s: float

    def links(self, limit_Bps: float | None = None) -> tuple[Link, ...]:
        """Both directions as plans count on them: concurrent with compute, and no faster than a limit."""
        return tuple(
            Link(source, target, engine, rate_Bps if limit_Bps is None else min(limit_Bps, rate_Bps), self.latency_s)
            for source, target, engine, rate_Bps in (
                (DEVICE, HOST, "to_host", self.to_host_busy_Bps),
                (HOST, DEVICE, "from_host", self.from_host_busy_Bps),
            )
        )


def bandwidth(device: str, cache: ProfileCache) -> Bandwidth:
    """The bandwidth between a device and the host: from the cache, or measured, which takes a part of a second.

    Arguments:
        device: torch device type.
    """
    here = fingerprint(device)
    names = list(Bandwidth.__dataclass_fields__)
    known = {name: cache.rate(here, name) for name in names}
    if any(rate is None for rate in known.values()):
        with nothing_engaged(), torch.no_grad():
            measured = _measure(device)
        known = {name: float(f"{getattr(measured, name):.{_DIGITS - 1}e}") for name in names}
        for name, rate in known.items():
            cache.put_rate(here, name, float(rate or 0.0))
        cache.flush()
    return Bandwidth(**{name: float(rate or 0.0) for name, rate in known.items()})


def _measure(device: str) -> Bandwidth:
    engines = Engines(_BUFFER_B, None, device)
    try:
        host = engines.pool.empty((_BUFFER_B,)).zero_()
        there = torch.zeros(_BUFFER_B, dtype=torch.uint8, device=device)
        to_host, from_host = engines.lanes
        latency_s = statistics.median(_once_s(to_host, host, there, 0) for _ in range(_TINY))
        return Bandwidth(
            _rate_Bps(to_host, host, there, ""),
            _rate_Bps(from_host, there, host, ""),
            _rate_Bps(to_host, host, there, device),
            _rate_Bps(from_host, there, host, device),
            latency_s,
        )
    finally:
        engines.close()


def _once_s(lane: CopyEngine, target: torch.Tensor, source: torch.Tensor, size_B: int) -> float:
    start = time.perf_counter()
    lane.submit(target, source, size_B, ()).settle()
    return time.perf_counter() - start


def _rate_Bps(lane: CopyEngine, target: torch.Tensor, source: torch.Tensor, computing: str) -> float:
    """Bytes per second of a few copies in a row.

    Arguments:
        computing: the device that computes meanwhile; empty for none.
    """
    lane.submit(target, source, _BUFFER_B, ()).settle()  # the first touches what nobody has touched
    before = lane.traffic()
    last = [lane.submit(target, source, _BUFFER_B, ()) for _ in range(_COPIES)][-1]
    if computing:
        _compute_until(last, computing)
    last.settle()
    lane.drain()
    after = lane.traffic()
    return (after.moved_B - before.moved_B) / max(after.busy_s - before.busy_s, 1e-9)


def _compute_until(last: Happening, device: str) -> None:
    matrix = torch.ones(_WIDTH, _WIDTH, device=device)
    while not last.is_set:
        torch.mm(matrix, matrix)
