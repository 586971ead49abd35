"""Seconds of a callable, warm.

On a GPU two clocks run: the processor issues work, and the device does it. Several calls are issued while the device
spins, between two events: what lies between these is the device's time alone, and the processor's is read meanwhile.
A clock around each call with a wait behind it would read 15 to 25 us for what takes the device 3.

Not run on a GPU yet. Units: `_s` seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

_UNEVEN = 2.0  # times further apart than this are disturbed
_STEADY = 9  # calls of which a few disturbed ones no longer shift the median


_CALLS = 10  # issued behind one spin
_SPIN_CYCLES, _MOST_CYCLES = 1_000_000, 256_000_000  # half a millisecond, a tenth of a second
_ROUNDS = 5
_MS_s = 1e-3  # torch's events tell milliseconds


class Seconds(NamedTuple):
    """What one call takes.

    Arguments:
        device_s: of the device's work.
        issue_s: of the processor, to issue it; 0 on CPU, where that is the work.
    """

    device_s: float
    issue_s: float = 0.0


def synchronize(device: str) -> None:
    """Waits until the device has finished everything that was issued; does nothing on CPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def once_s(call: Callable[[], object], device: str = "cpu") -> float:
    """Seconds of one call, from idle device to idle device. What it returns is released within the time."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def median_s(
    call: Callable[[], object],
    *,
    device: str = "cpu",
    warmups: int = 1,
    repeats: int = 3,
    most: int = 30,
    cap_s: float = 0.03,
    earlier_s: Sequence[float] = (),
) -> float:
    """Median seconds of a call after warming up.

    Arguments:
        call: what to time.
        device: whose work the call issues.
        warmups: calls that are not counted.
        repeats: calls that are counted at least, however long they take.
        most: calls that are counted at most.
        cap_s: no further call is made after this long, once `repeats` are done.
        earlier_s: times of earlier calls that count too.

    Returns: the median of the counted calls. Times that differ much, as on a busy machine, are counted a few more
        times, beyond the cap.
    """
    for _ in range(warmups):
        call()
    times = list(earlier_s)
    spent = sum(times)
    while (
        len(times) < repeats
        or (spent < cap_s and len(times) < most)
        or (max(times) > _UNEVEN * min(times) and len(times) < _STEADY and spent < _STEADY * cap_s)
    ):
        times.append(once_s(call, device))
        spent += times[-1]
    return statistics.median(times)


def timed(call: Callable[[], object], *, device: str = "cpu", earlier_s: Sequence[float] = ()) -> Seconds:
    """Seconds of a warm call, on the device and on the processor.

    Arguments:
        call, device, earlier_s: as for `median_s`.
    """
    if device != "cuda":
        return Seconds(median_s(call, device=device, warmups=0, earlier_s=earlier_s))
    rounds = [_behind_a_spin(call) for _ in range(_ROUNDS)]
    return Seconds(statistics.median(r.device_s for r in rounds), statistics.median(r.issue_s for r in rounds))


def _behind_a_spin(call: Callable[[], object]) -> Seconds:
    """Issues several calls while the device spins; where that ends too early it spins longer, at last not at all."""
    cycles, calls = _SPIN_CYCLES, _CALLS
    while True:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        if cycles:
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
        start.record()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        issued_s = time.perf_counter() - begun
        is_short = bool(start.query())  # type: ignore[no-untyped-call]
        stop.record()
        stop.synchronize()
        if not is_short or not cycles:
            return Seconds(start.elapsed_time(stop) * _MS_s / calls, issued_s / calls)
        if cycles < _MOST_CYCLES:
            cycles *= 4
        else:  # it waits for the device itself, as what reads a number does
            cycles, calls = 0, 1
