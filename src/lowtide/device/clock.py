"""Seconds of a callable, warm. Units: `_s` seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


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
) -> float:
    """Median seconds of a call after warming up.

    Arguments:
        call: what to time.
        device: whose work the call issues.
        warmups: calls that are not counted.
        repeats: calls that are counted at least, however long they take.
        most: calls that are counted at most.
        cap_s: no further call is made after this long, once `repeats` are done.

    Returns: the median of the counted calls.
    """
    for _ in range(warmups):
        call()
    times: list[float] = []
    spent = 0.0
    while len(times) < repeats or (spent < cap_s and len(times) < most):
        times.append(once_s(call, device))
        spent += times[-1]
    return statistics.median(times)
