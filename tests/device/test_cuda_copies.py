"""The stream of copies, on simulated streams: what waits for what, and what is counted. Nothing here needs a GPU."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import pytest
import torch

from lowtide._core import Event
from lowtide.device import host
from lowtide.device.cuda_copies import Recorded, Span, StreamedCopies
from lowtide.device.engines import Engines, Transfer
from lowtide.errors import ArenaError
from lowtide.ir.geometry import Geometry
from lowtide.runtime.moves import HostOutput, Moves

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

    clock = made = 0
    passed = 0  # the latest instant that the GPU has passed

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        FakeEvent.made += 1
        self.instant = -1

    def record(self, stream: FakeStream) -> None:
        FakeEvent.clock += 1
        self.instant = FakeEvent.clock
        _LOG.append((stream.name, "records", str(self.instant)))

    def query(self) -> bool:
        assert not is_captured[0], "CUDA forbids it in a capture"
        return self.instant <= FakeEvent.passed

    def synchronize(self) -> None:
        _LOG.append(("processor", "waits for instant", str(self.instant)))

    def elapsed_time(self, later: FakeEvent) -> float:
        return float(later.instant - self.instant)


is_captured = [False]


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
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_captured[0])
    FakeEvent.clock = FakeEvent.made = 0
    FakeEvent.passed = 0
    is_captured[0] = False
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
    assert isinstance(lost_s, Span)
    assert lost_s.time_s() == pytest.approx(1e-3)
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


def test_events_are_used_again_and_none_is_asked_in_a_capture() -> None:
    engines = Engines(2**20, device="cuda")
    engines._lanes = (StreamedCopies(0), StreamedCopies(0))
    source, target = torch.ones(4), torch.zeros(4)
    for _ in range(50):
        FakeEvent.passed = FakeEvent.clock
        engines.wait(Transfer(engines.lanes[0].submit(target, source, 16, ()), "x"))
    assert FakeEvent.made < 50 + 10  # the end of a copy belongs to those who wait for it; all else is used again
    assert engines._lanes[0].pending == 1
    assert engines.stalls.pending == 1
    is_captured[0] = True
    engines.wait(Transfer(engines.lanes[0].submit(target, source, 16, ()), "x"))
    is_captured[0] = False
    seen = engines.stats()
    assert (seen.to_host.copies, seen.stalls) == (51, 51)
    assert seen.to_host.busy_s == pytest.approx(51e-3)


def test_a_run_on_the_host_waits_for_copies_that_only_the_device_has_waited_for() -> None:
    """And for those whose bytes on the host it may have been given."""
    engines = Engines(2**20, device="cuda")
    engines._lanes = (StreamedCopies(0), StreamedCopies(0))
    moves = Moves(engines, ["x"])
    copy = moves.send(torch.ones(4), 16, 0)
    moves.wait(copy.written)
    assert copy.written.compute_waits
    done = copy.written.happening
    assert isinstance(done, Recorded)
    back, came = moves.fetch(copy, 16, 0)
    _LOG.clear()
    moves.run(lambda x: x, [copy], [HostOutput((), Geometry("float32", (4,), (1,)), 16)], 0)
    engines.host.drain()
    waited = {line[2] for line in _LOG if line[:2] == ("processor", "waits for instant")}
    assert isinstance(came.happening, Recorded)
    instants = {str(happening.event.instant) for happening in (done, came.happening)}  # type: ignore[attr-defined]
    assert instants <= waited
    engines.host.stop()
    del back


def test_what_python_may_look_at_is_there_when_a_segment_ends() -> None:
    engines = Engines(2**20, device="cuda")
    engines._lanes = (StreamedCopies(0), StreamedCopies(0))
    moves = Moves(engines, ["w"])
    weight = moves.arrived(torch.zeros(4), "cpu")
    moves.send_back(torch.ones(4), weight, 16, 0)
    _LOG.clear()
    moves.finish()
    assert ("processor", "waits for instant") in [line[:2] for line in _LOG]


class FakeRuntime:
    """Says which stretches it was asked to pin."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size_B: int, _: int) -> int:
        self.pinned[address] = size_B
        return 0 if len(self.pinned) < 4 else 2

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


def test_only_what_blocks_use_of_a_pool_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = FakeRuntime()
    monkeypatch.setattr(host, "_registrar", lambda: runtime)
    monkeypatch.setattr(host, "_STRETCH_B", 2**20)
    pool = host.HostPool(64 * 2**20)
    assert (pool.pinning, pool.pinned_B) == ("registered", 0)
    first = pool.empty((1000,))
    again = pool.empty((1000,))
    assert pool.pinned_B == 2**20
    large = pool.empty((2 * 2**20,))
    assert pool.pinned_B == 3 * 2**20
    assert sorted(runtime.pinned.values()) == [2**20] * 3
    with pytest.raises(ArenaError, match=r"refuses to pin 1\.00 MiB of host memory besides 3\.00 MiB"):
        pool.empty((8 * 2**20,))
    assert pool.stats().blocks == 3
    del first, again, large, pool
    gc.collect()
    assert list(runtime.pinned.values()) in ([], [2**20])  # what was refused was never pinned
