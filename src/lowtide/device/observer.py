"""Real allocator events of a block of code: from lowtide's own allocators where they are active, else from torch's
profiler, which knows nothing of lowtide's GPU arena.

What can be seen, and what cannot:

- lowtide's allocator notes the events of every thread. The profiler notes those of the calling thread, and of threads
  to which torch hands its thread-local state (autograd's device threads), but not what the worker threads of a
  parallel CPU operator allocate.
- On CPU, the release of a block that was allocated before the observation began is not an event: start observing
  before the memory of interest is allocated. On CUDA such releases are events too.
- Sizes are the requested bytes; those of torch's caching allocator on CUDA are rounded by it.

Units: `_B` bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import msgspec
import torch
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile as _profile

from lowtide.device import cuda, shim, tenant_shim
from lowtide.device.cuda_module import CudaModule
from lowtide.device.shim_module import ShimModule
from lowtide.device.tenant_module import TenantModule
from lowtide.errors import LowtideError

# One above the severity of the lines that announce start and stop; kineto's default shows only those.
_QUIET = "6"
_RUNNING = "a torch profiler is already running; end it (or the outer observe()) first"


class AllocationEvent(msgspec.Struct, frozen=True, gc=False):
    """One allocation (`size_B` > 0) or release (`size_B` < 0), by which thread, at which address, `order`-th of all."""

    order: int
    thread: int
    address: int
    size_B: int


class Observation(msgspec.Struct, frozen=True):
    """What an allocator did during a block of code.

    Arguments:
        events: in the order in which they happened.
    """

    events: tuple[AllocationEvent, ...] = ()

    @property
    def peak_B(self) -> int:
        """Most bytes above the level at entry. O(events)."""
        now = top = 0
        for event in self.events:
            now += event.size_B
            top = max(top, now)
        return top

    @property
    def end_B(self) -> int:
        """Bytes above the level at entry when the block ended. O(events)."""
        return sum(event.size_B for event in self.events)


class Observer:
    """A context that observes one block; the results are there after its end, also when the block raised.

    Arguments:
        device: whose allocator, `"cpu"` or `"cuda"`.
        yields: whether it ends where another one begins: for blocks whose end nobody may tell, after an error.
    """

    def __init__(self, device: str = "cpu", *, yields: bool = False) -> None:
        self._device, self._yields = device, yields
        self._session: _profile | None = None
        self._log: ShimModule | TenantModule | CudaModule | None = None
        self.sees_workers = False
        """Whether events of a parallel operator's worker threads are among the observed ones."""
        self._observation: Observation | None = None

    @property
    def observation(self) -> Observation:
        """The finished observation.

        Raises:
            LowtideError: while the block still runs, or before it ran.
        """
        if self._observation is None:
            raise LowtideError("an observation has results only after its block has ended")
        return self._observation

    @property
    def events(self) -> tuple[AllocationEvent, ...]:
        """Events of the finished observation."""
        return self.observation.events

    @property
    def peak_B(self) -> int:
        """Most bytes above the level at entry."""
        return self.observation.peak_B

    @property
    def end_B(self) -> int:
        """Bytes above the level at entry when the block ended."""
        return self.observation.end_B

    def __enter__(self) -> Observer:
        if self._session is not None or self._log is not None or self._observation is not None:
            raise LowtideError("an observer observes one block; make another one with observe()")
        _end_yielding()
        if torch._C._autograd._profiler_enabled():
            raise LowtideError(_RUNNING)
        module = _module_for(self._device)
        if module is not None:
            if not module.log_start():
                raise LowtideError(_RUNNING)
            self._log, self.sees_workers = module, True
            if self._yields:
                _YIELDING.append(self)
            return self
        session = _profile(profile_memory=True)
        with _quiet_start():
            session.__enter__()  # type: ignore[no-untyped-call]
        self._session = session
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        log, self._log = self._log, None
        if self in _YIELDING:
            _YIELDING.remove(self)
        if log is not None:
            self._observation = Observation(tuple(AllocationEvent(i, *e) for i, e in enumerate(log.log_stop())))
            return
        session, self._session = self._session, None
        if session is None:
            return
        session.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        results = session.kineto_results
        tree = results.experimental_event_tree() if results is not None else []
        self._observation = _read(tree, self._device)


def observe(device: str = "cpu") -> Observer:
    """Records every allocator event of a `with` block.

    Arguments:
        device: `"cpu"` or `"cuda"`.

    Returns: a context; `peak_B`, `end_B`, `events` and `observation` can be read once the block has ended. By
        the profiler it costs half a millisecond per block and about a microsecond per operator in it, by lowtide's
        allocator a tenth of that.

    Raises:
        LowtideError: on entry, if a torch profiler or another observation is already running.
    """
    return Observer(device)


_YIELDING: list[Observer] = []  # that observe now; at most one


def _end_yielding() -> None:
    for observer in list(_YIELDING):
        observer.__exit__(None, None, None)


def _module_for(device: str) -> ShimModule | TenantModule | CudaModule | None:
    """lowtide's own code behind a device's allocator; None where torch's is alone.

    On a GPU it is loaded for that: torch's profiler tells of whole blocks, whose sizes depend on what lay there before.
    """
    if device == "cpu":
        return shim.loaded()
    return cuda.active_module() or (None if tenant_shim.refusal() else tenant_shim.load())


def observe_if_free(device: str = "cpu", *, yields: bool = False) -> Observer | None:
    """Like `observe`, by lowtide's own allocator; None where it is not loaded, or somebody observes already.

    Arguments:
        device: `"cpu"` or `"cuda"`.
        yields: see `Observer`.
    """
    _end_yielding()
    module = _module_for(device)
    if module is None or torch._C._autograd._profiler_enabled() or module.is_logging():
        return None
    return Observer(device, yields=yields)


class _quiet_start:
    """Keeps kineto from announcing each session on stderr: it reads its log level once, at the first session."""

    def __enter__(self) -> None:
        self._added = "KINETO_LOG_LEVEL" not in os.environ
        if self._added:
            os.environ["KINETO_LOG_LEVEL"] = _QUIET

    def __exit__(self, *_: object) -> None:
        if self._added:
            os.environ.pop("KINETO_LOG_LEVEL", None)


def _allocations(tree: list[Any], device: str) -> Iterator[tuple[int, int, int, int]]:
    pending = tree[::-1]
    while pending:
        event = pending.pop()
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            if fields.device.type == device:
                yield event.start_time_ns, event.start_tid, fields.ptr, fields.alloc_size
        pending.extend(reversed(event.children))


def _read(tree: list[Any], device: str) -> Observation:
    """Orders the profiler's records by time, and drops releases whose allocation it did not see.

    The CPU reporter keeps addresses of earlier sessions; a release of such an address by this one carries a size
    from then. On CUDA every release is real.
    """
    live: dict[int, int] = {}
    events: list[AllocationEvent] = []
    for _, thread, address, size_B in sorted(_allocations(tree, device), key=lambda record: record[0]):
        if size_B > 0:
            live[address] = size_B
        elif address in live:
            size_B = -live.pop(address)
        elif device == "cpu":
            continue
        if size_B:
            events.append(AllocationEvent(len(events), thread, address, size_B))
    return Observation(tuple(events))
