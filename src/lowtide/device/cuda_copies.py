"""One direction of copying concurrent with kernels: a stream of its own on a GPU. Not run on a GPU yet.

A copy begins when the kernels that were issued before it have run, and compute goes on without waiting on the
processor: its stream waits on the GPU. Host memory has to be pinned (`device/host.py`), or a copy holds up the
processor until it has ended. The link is what it is: a limit here is for planning alone.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lowtide.device.copies import CopyEngine, Happening, Lost
from lowtide.device.transfer_stats import Traffic

_MS_s = 1e-3  # torch's events tell milliseconds


@dataclass(frozen=True, eq=False)
class Recorded:
    """A point in a stream's order."""

    event: torch.cuda.Event

    @property
    def is_set(self) -> bool:
        """Whether the GPU is known to have passed it. Not while something is captured: then no event may be asked."""
        return not torch.cuda.is_current_stream_capturing() and bool(self.event.query())  # type: ignore[no-untyped-call]

    def settle(self) -> None:
        """Waits on the processor until the GPU has."""
        self.event.synchronize()


class Events:
    """Timing events of one device, used again once nobody asks them any more: making one costs a driver's call."""

    def __init__(self) -> None:
        self._idle: list[torch.cuda.Event] = []

    def behind(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """An event behind everything that a stream has been given."""
        event = self._idle.pop() if self._idle else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def put_back(self, *events: torch.cuda.Event) -> None:
        """Says that nobody asks them any more."""
        self._idle += events


class Span:
    """The seconds between two events of one stream.

    Arguments:
        kept: whether the later event is not put back, since others wait for it.
    """

    def __init__(self, events: Events, start: torch.cuda.Event, stop: torch.cuda.Event, *, kept: bool = False) -> None:
        self._events, self._start, self._stop, self._kept = events, start, stop, kept

    @property
    def is_known(self) -> bool:
        """Whether the GPU has passed both. Not while something is captured: then no event may be asked."""
        return not torch.cuda.is_current_stream_capturing() and bool(self._stop.query())  # type: ignore[no-untyped-call]

    def time_s(self) -> float:
        """The seconds, once the GPU has passed both; asked once."""
        self._stop.synchronize()
        found = float(self._start.elapsed_time(self._stop)) * _MS_s
        self._events.put_back(self._start, *(() if self._kept else (self._stop,)))
        return found


class StreamedCopies(CopyEngine):
    """A stream that copies between a GPU and pinned memory.

    Invariant: `_spans` holds the copies that had not ended when the latest was submitted, and that one.

    Arguments:
        device: index of the GPU.
        limit_Bps: what plans count on; it holds nothing up.
    """

    waits_on_device = True

    def __init__(self, device: int, limit_Bps: float | None = None) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._limit_Bps = limit_Bps
        self._events = Events()
        self._spans: deque[Span] = deque()
        self._latest: Recorded | None = None
        self._copies = self._moved_B = 0
        self._busy_s = 0.0

    @property
    def latest(self) -> Happening | None:
        return self._latest

    @property
    def pending(self) -> int:
        """Copies whose seconds are not known yet."""
        return len(self._spans)

    def submit(self, target: torch.Tensor, source: torch.Tensor, size_B: int, after: Sequence[Happening]) -> Happening:
        while self._spans and self._spans[0].is_known:
            self._busy_s += self._spans.popleft().time_s()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        for happening in after:
            if isinstance(happening, Recorded):
                self._stream.wait_event(happening.event)
            else:  # of the processor: a stream cannot wait for that
                happening.settle()
        with torch.cuda.stream(self._stream):
            start = self._events.behind(self._stream)
            _bytes_of(target, size_B).copy_(_bytes_of(source, size_B), non_blocking=True)
            stop = self._events.behind(self._stream)
        self._spans.append(Span(self._events, start, stop, kept=True))
        self._copies += 1
        self._moved_B += size_B
        self._latest = Recorded(stop)
        return self._latest

    def wait(self, happening: Happening) -> float | Lost:
        if not isinstance(happening, Recorded):
            happening.settle()
            return 0.0
        compute = torch.cuda.current_stream(self._stream.device)
        start = self._events.behind(compute)
        compute.wait_event(happening.event)
        return Span(self._events, start, self._events.behind(compute))

    def drain(self) -> None:
        self._stream.synchronize()

    def stop(self) -> None:
        self._stream.synchronize()

    def traffic(self) -> Traffic:
        while self._spans:
            self._busy_s += self._spans.popleft().time_s()
        return Traffic(self._copies, self._moved_B, self._busy_s, self._limit_Bps)


def _bytes_of(tensor: torch.Tensor, size_B: int) -> torch.Tensor:
    """The bytes from a tensor's first element on."""
    storage, first_B = tensor.untyped_storage(), tensor.storage_offset() * tensor.element_size()
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(storage, first_B, (size_B,), (1,))
