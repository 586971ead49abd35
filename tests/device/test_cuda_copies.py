"""The stream of copies, on simulated streams: what waits for what, and what is counted. Nothing here needs a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from lowtide._core import Event
from lowtide.device.cuda_copies import Recorded, StreamedCopies

_LOG: list[tuple[str, ...]] = []


class FakeStream:
    """Says what it is told to wait for; its work is done at once."""

    def __init__(self, device: int = 0, name: str = "copies") -> None:
        self.device, self.name = device, name

    def wait_stream(self, other: FakeStream) -> None:
        _LOG.append((self.name, "waits for stream", other.name))

    def wait_event(self, event: FakeEvent) -> None:
        _LOG.append((self.name, "waits for instant", str(event.instant)))

    def synchronize(self) -> None:
        _LOG.append(("processor", "waits for stream", self.name))


class FakeEvent:
    """An instant that counts milliseconds."""

    clock = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.instant = -1

    def record(self, stream: FakeStream) -> None:
        FakeEvent.clock += 1
        self.instant = FakeEvent.clock
        _LOG.append((stream.name, "records", str(self.instant)))

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        _LOG.append(("processor", "waits for instant", str(self.instant)))

    def elapsed_time(self, later: FakeEvent) -> float:
        return float(later.instant - self.instant)


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def inside(_: FakeStream) -> Iterator[None]:
        yield

    compute = FakeStream(0, "compute")
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: compute)
    monkeypatch.setattr(torch.cuda, "stream", inside)
    FakeEvent.clock = 0
    _LOG.clear()


def test_a_copy_waits_for_compute_and_for_other_copies() -> None:
    there, back = StreamedCopies(0, 64e9), StreamedCopies(0, 64e9)
    source, host, target = torch.arange(100.0)[10:], torch.zeros(90), torch.zeros(90)
    sent = there.submit(host, source, 360, ())
    assert ("copies", "waits for stream", "compute") in _LOG
    _LOG.clear()
    came = back.submit(target, host, 360, [sent])
    assert isinstance(sent, Recorded)
    assert _LOG[:2] == [
        ("copies", "waits for stream", "compute"),
        ("copies", "waits for instant", str(sent.event.instant)),
    ]  # type: ignore[attr-defined]
    assert torch.equal(target, source)
    _LOG.clear()
    lost_s = back.wait(came)
    assert [line[:2] for line in _LOG] == [
        ("compute", "records"),
        ("compute", "waits for instant"),
        ("compute", "records"),
    ]
    assert callable(lost_s)
    assert lost_s() == pytest.approx(1e-3)
    seen = there.traffic()
    assert (seen.copies, seen.moved_B, seen.rate_Bps) == (1, 360, 64e9)
    assert seen.busy_s == pytest.approx(1e-3)
    assert there.traffic().busy_s == seen.busy_s


def test_what_the_processor_brings_is_waited_for_there() -> None:
    lane = StreamedCopies(0)
    brought = Event()
    brought.set()
    lane.submit(torch.zeros(4), torch.ones(4), 16, [brought])
    assert lane.wait(brought) == 0.0
    lane.drain()
    assert _LOG[-1] == ("processor", "waits for stream", "copies")
