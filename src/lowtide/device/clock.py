"""Seconds of a callable, warm. Units: `_s` seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

_UNEVEN = 2.0  # times further apart than this are disturbed
_STEADY = 9  # calls of which a few disturbed ones no longer shift the median


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
