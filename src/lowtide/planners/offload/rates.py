"""How long copies between the device and the host take. Units: `_B` bytes, `_s` seconds."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.ir.machine import Link, Machine
from lowtide.ir.schedule import DEVICE, HOST


@dataclass(frozen=True)
class Rates:
    """How long copies take: seconds per byte and once, to the host and from it."""

    to_s_per_B: float
    to_s: float
    from_s_per_B: float
    from_s: float

    @staticmethod
    def of(machine: Machine) -> Rates:
        """The links between a machine's device and its host. Without one, copies in that direction take no time."""
        device = machine.memories[0].name if machine.memories else DEVICE
        links = {(link.source, link.target): link for link in machine.links}
        to, back = links.get((device, HOST)), links.get((HOST, device))
        return Rates(*_rate(to), *_rate(back))

    def send_s(self, size_B: int) -> float:
        return self.to_s + size_B * self.to_s_per_B

    def fetch_s(self, size_B: int) -> float:
        return self.from_s + size_B * self.from_s_per_B


def _rate(link: Link | None) -> tuple[float, float]:
    return (0.0, 0.0) if link is None else (1.0 / link.rate_Bps, link.latency_s)
