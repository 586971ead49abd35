"""Copy engines, host memory and the host's own computing for one budget, as generated code uses them.

A step names what it transfers; the engines copy while compute runs, in order per direction. `wait` holds compute
until a copy has happened, and counts the stall if it was late: on CPU this thread, on a GPU the stream of compute,
while the processor goes on; runs on the host then wait for themselves. A segment ends with `finish`: what is issued
after it comes after all copies, and what others may look at in host memory is there. Where it raises, `drain` lets
every copy end before the bytes of either side are released.

Nothing is begun before it is needed: a plan without transfers has no thread and no pool.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lowtide.device.copies import CopyEngine, Happening, ThreadedCopies
from lowtide.device.cuda_copies import StreamedCopies
from lowtide.device.host import HostPool
from lowtide.device.host_engine import HostEngine
from lowtide.device.transfer_stats import Stalls, Traffic, TransferStats
from lowtide.errors import LowtideError
from lowtide.ir.layout import ALIGNMENT_B


class Transfer:
    """A copy that may still be in progress.

    Arguments:
        happening: None when it is known to have happened, on the processor as well.
        name: of the value.
        shown: whether code that knows nothing of engines reads the bytes in host memory when the segment has ended.
    """

    __slots__ = ("compute_waits", "happening", "name", "shown")

    def __init__(self, happening: Happening | None, name: str, *, shown: bool = False) -> None:
        self.happening, self.name, self.shown = happening, name, shown
        self.compute_waits = False  # what is issued to the device from now on comes after it


class HostCopy:
    """A value in host memory.

    Arguments:
        tensor: over its bytes there; it has the value's geometry.
        written: the copy, or the run, that brings the bytes.
        device: where it came from, and goes back to.
    """

    __slots__ = ("device", "tensor", "written")

    def __init__(self, tensor: torch.Tensor, written: Transfer, device: torch.device) -> None:
        self.tensor, self.written, self.device = tensor, written, device


@dataclass(eq=False)
class Engines:
    """Transfers bytes between a device and the host.

    Arguments:
        host_B: the hard limit of what is offloaded to the host.
        limit_Bps: the rate of the link in each direction; None for what it can do.
        device: torch device type.
        latest: what was prefetched last, until somebody waits.
    """

    host_B: int
    limit_Bps: float | None = None
    device: str = "cpu"
    stalls: Stalls = field(default_factory=Stalls)
    host: HostEngine = field(default_factory=HostEngine)
    latest: torch.Tensor | None = None
    _pool: HostPool | None = None
    _lanes: tuple[CopyEngine, CopyEngine] | None = None
    _in_progress: list[Transfer] = field(default_factory=list)

    @property
    def pool(self) -> HostPool:
        """Host memory, reserved when it is first asked for.

        Raises:
            ArenaError: if the system refuses it.
        """
        if self._pool is None:
            self._pool = HostPool(self.host_B, pin=self.device == "cuda", granule_B=ALIGNMENT_B)
        return self._pool

    @property
    def lanes(self) -> tuple[CopyEngine, CopyEngine]:
        """To the host, and from it."""
        if self._lanes is None:
            self._lanes = (self._lane(), self._lane())
        return self._lanes

    def _lane(self) -> CopyEngine:
        if self.device == "cuda":
            return StreamedCopies(torch.cuda.current_device(), self.limit_Bps)
        return ThreadedCopies(self.limit_Bps)

    def on_device(self) -> list[Happening]:
        """What a run on the host has to wait for besides what it reads: the device waits for copies on its own.

        The host bytes that a run writes may have been freed while a copy that reads or writes them was still to come.
        """
        return [] if self._lanes is None else [lane.latest for lane in self._lanes if lane.latest is not None]

    def begin(self, transfer: Transfer) -> None:
        """Notes what `drain` and `finish` have to wait for."""
        self._in_progress.append(transfer)

    def wait(self, transfer: Transfer) -> None:
        """Holds compute until a copy has happened.

        Raises:
            LowtideError: if a run on the host has failed, with what it raised as the cause.
        """
        self.latest = None
        happening = transfer.happening
        if happening is not None and not transfer.compute_waits and not happening.is_set:
            lane = self.lanes[0]
            self.stalls.add(transfer.name, lane.wait(happening))  # where it raises, the copy is still under way
            transfer.compute_waits = lane.waits_on_device
        if not transfer.compute_waits:
            transfer.happening = None
        if self.host.failure is not None:
            self._raise_failure()

    def finish(self) -> None:
        """Waits for all that is in progress, as `wait` does; the processor too where it may look at the bytes."""
        for transfer in self._in_progress:
            self.wait(transfer)
            if transfer.shown and transfer.happening is not None:
                transfer.happening.settle()
        self._in_progress.clear()
        self.latest = None
        if self.host.failure is not None:
            self._raise_failure()

    def drain(self) -> None:
        """Waits until nothing is in progress, whatever signals come; then no engine touches any bytes."""
        self.host.drain()
        for lane in self._lanes or ():
            lane.drain()
        self._in_progress.clear()
        self.latest = None
        self.host.failed()

    def close(self) -> None:
        """Lets what is in progress end, and takes the threads and the pool away. Tensors in the pool live on."""
        self.drain()
        for lane in self._lanes or ():
            lane.stop()
        self.host.stop()
        if self._pool is not None:
            self._pool.close()
        self._lanes = self._pool = None

    def stats(self) -> TransferStats:
        """What was transferred, and how long compute waited for it."""
        by_value = self.stalls.by_value()
        to_host, from_host = (lane.traffic() for lane in self._lanes) if self._lanes else (Traffic(), Traffic())
        pool = None if self._pool is None else self._pool.stats()
        return TransferStats(
            to_host=to_host,
            from_host=from_host,
            stalls=sum(s.count for s in by_value),
            stalled_s=sum(s.time_s for s in by_value),
            by_value=by_value,
            host_runs=self.host.runs,
            host_busy_s=self.host.busy_s,
            host_budget_B=self.host_B,
            host_in_use_B=0 if pool is None else pool.in_use_B,
            host_peak_B=0 if pool is None else pool.peak_B,
        )

    def _raise_failure(self) -> None:
        self.host.drain()  # what was submitted behind it does no work as long as the failure stands
        error = self.host.failed()
        raise LowtideError(f"an operator on the host failed ({type(error).__name__}: {error})") from error
