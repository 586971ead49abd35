"""One operator signature, run alone and watched: twice for its allocator events, three times on equal inputs to see
whether it repeats itself, then a few times for its seconds.

The rules are those that make a sequence of mini-traces equal the allocator events of a real step: real geometry,
the same call form as generated code, no gradient, no modes, a cold and a warm run that have to agree.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from lowtide.device import library_workspaces
from lowtide.device.calls import arguments, resolve
from lowtide.device.clock import synchronize, timed
from lowtide.device.dispatch_modes import no_modes
from lowtide.device.generator_guard import unchanged_generators
from lowtide.device.observer import AllocationEvent, observe
from lowtide.errors import UnsupportedOperator
from lowtide.profile.measurement import Measurement, Result, resized
from lowtide.profile.repetition import Repetition
from lowtide.profile.samples import samples
from lowtide.profile.signature import Signature, geometry_of

# The only CPU kernels seen to allocate on worker threads, which torch's profiler does not report.
_WORKERS_ALLOCATE = frozenset({"aten._scaled_dot_product_flash_attention_for_cpu_backward.default"})

# Recurrent kernels read weights and reserves packed by their own forward; on other contents they may crash.
_PACKED = ("_cudnn_rnn", "miopen_rnn")

BRANCHES = frozenset({"higher_order.cond"})
"""Calls that choose by a mask what to run: graphs of operators, which can be tried."""

_LONG_s = 0.01  # from here on, what watching adds to a run does not matter


@contextlib.contextmanager
def isolation() -> Iterator[None]:
    """Runs operators as generated code does, and leaves no mark: modes off, generators put back, no collector.

    The collector must not run inside a recording: it would release tensors of somebody else.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(unchanged_generators())
            stack.enter_context(no_modes())
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.autocast("cpu", enabled=False))
            if torch.cuda.is_available():
                stack.enter_context(torch.autocast("cuda", enabled=False))
            yield
    finally:
        if collecting:
            gc.enable()


def record(signature: Signature, held: Sequence[Any] = (), *, once: bool = False) -> Measurement:
    """Measures one signature; call it inside `isolation`.

    Arguments:
        signature: what to run.
        held: what its `Held` arguments stand for.
        once: run it for its events alone: its seconds, from one warm run, are marked as to be scaled. Where the
            events are not exact, it is measured in full all the same.

    Returns: seconds, events and results. Memory in use meanwhile: the operator's inputs, results and workspace.

    Raises:
        UnsupportedOperator: if the operator or an argument does not exist here.
        Exception: whatever the operator raises on inputs that are valid but meaningless.
    """
    if any(name in signature.op for name in _PACKED):
        raise UnsupportedOperator(f"{signature.op} reads packed contents that made-up inputs do not have")
    library_workspaces.held_B(signature.device)  # a workspace that stays is no part of whichever operator comes first
    if signature.op in BRANCHES:
        return _dearer_branch(signature, held, once)
    data_dependent = _depends_on_data(signature)
    mask = True if data_dependent else None  # the most that it can select
    try:
        measurement = _record(signature, samples(signature, mask=mask), held, once)
    except (RuntimeError, ZeroDivisionError):
        if not any(g.dtype.startswith(("int", "uint")) for g in signature.reads):
            raise
        measurement = _record(signature, samples(signature, integer=1, mask=mask), held, once)
    if data_dependent:
        return msgspec.structs.replace(measurement, flaw="its size depends on data")
    return measurement


def _dearer_branch(signature: Signature, held: Sequence[Any], once: bool) -> Measurement:
    """The branch with the higher peak; the other one is served as it fits in, where it differs."""
    both = [_record(signature, samples(signature, mask=mask), held, once) for mask in (True, False)]
    dearer = max(both, key=lambda m: (_temporary_peak_B(list(m.events), set()), len(m.events)))
    flaw = "" if both[0].events == both[1].events else "its memory depends on the branch that is taken"
    time_s, repeats = max(m.time_s for m in both), all(m.repeats for m in both)
    return msgspec.structs.replace(dearer, time_s=time_s, flaw=dearer.flaw or flaw, repeats=repeats)


class _Log(NamedTuple):
    """One run: its events in the form of a mini-trace, its results, and what is wrong with them."""

    events: tuple[int, ...]
    results: tuple[Result, ...]
    workers_B: int
    flaw: str


def _record(signature: Signature, tensors: list[torch.Tensor], held: Sequence[Any], once: bool) -> Measurement:
    args, kwargs = arguments(signature.args, signature.kwargs, tensors, held)
    call = functools.partial(resolve(signature.op), *args, **kwargs)
    repetition = Repetition(signature, tensors)
    cold, _ = _run(call, tensors, signature, repetition)
    repetition.again()
    warm, warm_s = _run(call, tensors, signature, repetition)
    repetition.again()
    repetition.ran(call())
    repeats = repetition.end()
    log = _safer(cold, warm)
    if once and not log.flaw:
        return Measurement(warm_s, log.events, log.results, log.workers_B, scaled=True, repeats=repeats)
    counted = (warm_s,) if warm_s > _LONG_s else ()
    seconds = timed(call, device=signature.device, earlier_s=counted)
    return Measurement(
        seconds.device_s,
        log.events,
        log.results,
        log.workers_B,
        log.flaw,
        repeats=repeats,
        issue_s=seconds.issue_s,
    )


def _run(
    call: Callable[[], Any], tensors: list[torch.Tensor], signature: Signature, repetition: Repetition
) -> tuple[_Log, float]:
    with observe(signature.device) as seen:
        synchronize(signature.device)
        start = time.perf_counter()
        result = call()
        synchronize(signature.device)
        time_s = time.perf_counter() - start
    repetition.ran(result)
    own, others = _by_thread(seen.events)
    flaw = ""
    events: list[int] = []
    live: dict[int, int] = {}  # address -> allocation
    count = 0
    for event in own:
        if event.size_B > 0:
            events.append(event.size_B)
            live[event.address] = count
            count += 1
        elif event.address in live:
            events.append(-(live.pop(event.address) + 1))
        else:
            flaw = "it released memory that it did not allocate"
    results, odd = _results(result, live, tensors)
    forgotten = set(live.values()) - {r.allocation for r in results}
    if forgotten:
        events += [-(k + 1) for k in sorted(forgotten, reverse=True)]
        flaw = "it kept memory that is no result"
    for r in results:  # a caching allocator reports whole blocks; the storage's own size is what plans count
        if r.allocation is not None:
            events = list(resized(tuple(events), r.allocation, r.size_B))
    workers_B = sum(_peak_B(thread) for thread in others)
    if not seen.sees_workers:
        workers_B += _unseen_workers_B(signature, events, results)
    return _Log(tuple(events), results, workers_B, odd or flaw), time_s


def _by_thread(events: Sequence[AllocationEvent]) -> tuple[list[AllocationEvent], list[list[AllocationEvent]]]:
    """The calling thread's events (the first thread to allocate), and the other threads' one by one."""
    threads: dict[int, list[AllocationEvent]] = {}
    for event in events:
        threads.setdefault(event.thread, []).append(event)
    own, *others = list(threads.values()) or [[]]
    return own, others


def _results(result: Any, live: dict[int, int], tensors: list[torch.Tensor]) -> tuple[tuple[Result, ...], str]:
    given = {t.untyped_storage().data_ptr(): i for i, t in reversed(list(enumerate(tensors))) if t.numel()}
    found: list[Result] = []
    flaw = ""
    pending: list[tuple[tuple[int, ...], Any]] = [((), result)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, tuple | list):
            pending += [((*path, i), part) for i, part in reversed(list(enumerate(item)))]
        elif isinstance(item, torch.Tensor) and item.layout is not torch.strided:
            flaw = f"it returned a tensor of layout {item.layout}"
        elif isinstance(item, torch.Tensor):
            storage = item.untyped_storage()
            address, size_B = storage.data_ptr(), storage.nbytes()
            allocation = live.get(address) if size_B else None
            alias = given.get(address) if size_B and allocation is None else None
            found.append(Result(path, geometry_of(item), size_B, allocation, alias))
    return tuple(found), flaw


def _peak_B(events: list[AllocationEvent]) -> int:
    """The most that one thread held."""
    now = top = 0
    for event in events:
        now += event.size_B
        top = max(top, now)
    return top


def _unseen_workers_B(signature: Signature, events: list[int], results: tuple[Result, ...]) -> int:
    """A bound on what workers hold of which the observer sees nothing.

    Where the kernel is known to allocate on them, their share is bounded by the calling thread's own temporaries: it
    works on an equal part, and its buffers for all threads are among them.
    """
    threads = torch.get_num_threads()
    if signature.op not in _WORKERS_ALLOCATE or threads == 1:
        return 0
    kept = {r.allocation for r in results}
    return _temporary_peak_B(events, kept) * (threads - 1) // threads


def _temporary_peak_B(events: list[int], kept: set[int | None]) -> int:
    sizes = [e for e in events if e >= 0]
    now = top = 0
    count = -1
    for event in events:
        count += event >= 0
        if event >= 0:
            now += 0 if count in kept else event
        else:
            now -= sizes[-event - 1]
        top = max(top, now)
    return top


def _safer(cold: _Log, warm: _Log) -> _Log:
    """The warm run where both agree; otherwise per event the larger of both, or the run with the higher peak."""
    workers_B = max(cold.workers_B, warm.workers_B)
    if cold.events == warm.events and cold.results == warm.results:
        return warm._replace(workers_B=workers_B)
    flaw = "two runs of it differed"
    same_shape = len(cold.events) == len(warm.events) and all(
        a == b or (a >= 0 and b >= 0) for a, b in zip(cold.events, warm.events, strict=True)
    )
    if same_shape and [r.allocation for r in cold.results] == [r.allocation for r in warm.results]:
        larger = tuple(max(a, b) if a >= 0 else a for a, b in zip(cold.events, warm.events, strict=True))
        return _Log(larger, warm.results, workers_B, flaw)
    higher = max((warm, cold), key=lambda log: _temporary_peak_B(list(log.events), set()))
    return higher._replace(workers_B=workers_B, flaw=flaw)


def _depends_on_data(signature: Signature) -> bool:
    target = resolve(signature.op)
    tags = getattr(target, "tags", ())
    if torch.Tag.dynamic_output_shape in tags:
        masks = any(g.dtype in ("bool", "uint8") for g in signature.reads)
        return masks or not signature.op.startswith(("aten.index.", "aten._unsafe_index."))
    return False
