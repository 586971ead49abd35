"""One direction of copying concurrent with kernels: a stream of its own on a GPU. Not run on a GPU yet.

A copy begins when the kernels that were issued before it have run, and compute goes on without waiting on the
processor: its stream waits on the GPU. Host memory has to be pinned (`device/host.py`), or a copy holds up the
processor until it has ended. The link is what it is: a limit here is for planning alone.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lowtide.device.copies import CopyEngine, Happening
from lowtide.device.transfer_stats import Traffic

_MS_s = 1e-3  # torch's events tell milliseconds


@dataclass(frozen=True, eq=False)
class Recorded:
    """A point in a stream's order."""

    event: torch.cuda.Event

    @property
    def is_set(self) -> bool:
        """Whether the GPU has passed it."""
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def settle(self) -> None:
        """Waits on the processor until the GPU has."""
        self.event.synchronize()


def _now(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


class StreamedCopies(CopyEngine):
    """A stream that copies between a GPU and pinned memory.

    Arguments:
        device: index of the GPU.
        limit_Bps: what plans count on; it holds nothing up.
    """

    def __init__(self, device: int, limit_Bps: float | None = None) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._limit_Bps = limit_Bps
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._copies = self._moved_B = 0
        self._busy_s = 0.0

    def submit(self, target: torch.Tensor, source: torch.Tensor, size_B: int, after: Sequence[Happening]) -> Happening:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        for happening in after:
            if isinstance(happening, Recorded):
                self._stream.wait_event(happening.event)
            else:  # of the processor: a stream cannot wait for that
                happening.settle()
        with torch.cuda.stream(self._stream):
            start = _now(self._stream)
            _bytes_of(target, size_B).copy_(_bytes_of(source, size_B), non_blocking=True)
            stop = _now(self._stream)
        self._spans.append((start, stop))
        self._copies += 1
        self._moved_B += size_B
        return Recorded(stop)

    def wait(self, happening: Happening) -> float | Callable[[], float]:
        if not isinstance(happening, Recorded):
            happening.settle()
            return 0.0
        compute = torch.cuda.current_stream(self._stream.device)
        start = _now(compute)
        compute.wait_event(happening.event)
        stop = _now(compute)

        def time_s() -> float:
            stop.synchronize()
            return float(start.elapsed_time(stop)) * _MS_s

        return time_s

    def drain(self) -> None:
        self._stream.synchronize()

    def stop(self) -> None:
        self._stream.synchronize()

    def traffic(self) -> Traffic:
        for start, stop in self._spans:
            stop.synchronize()
            self._busy_s += start.elapsed_time(stop) * _MS_s
        self._spans.clear()
        return Traffic(self._copies, self._moved_B, self._busy_s, self._limit_Bps)


def _bytes_of(tensor: torch.Tensor, size_B: int) -> torch.Tensor:
    """The bytes from a tensor's first element on."""
    storage, first_B = tensor.untyped_storage(), tensor.storage_offset() * tensor.element_size()
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(storage, first_B, (size_B,), (1,))
