"""Interleaved timing: every variant once per round, so that the machine's moods fall on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Seconds of one variant, one entry per round."""

    seconds_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds_s)


def interleave(variants: Mapping[str, Callable[[], object]], rounds: int, warmups: int = 2) -> dict[str, Times]:
    """Times every variant once per round, in an order that turns by one each round.

    Arguments:
        variants: what to call; preparation that must not be timed belongs into the callable's first half: it may
            return a callable, which is then what is timed.
        rounds: timed rounds.
        warmups: rounds before them.
    """
    names = list(variants)
    found: dict[str, list[float]] = {n: [] for n in names}
    for turn in range(rounds + warmups):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            work = variants[name]()
            assert callable(work), "a variant prepares, and returns what is timed"
            start = time.perf_counter()
            work()
            elapsed = time.perf_counter() - start
            if turn >= warmups:
                found[name].append(elapsed)
    return {n: Times(tuple(s)) for n, s in found.items()}


def ratio(a: Times, b: Times) -> float:
    """Median over rounds of a's seconds over b's in the same round."""
    return statistics.median(x / y for x, y in zip(a.seconds_s, b.seconds_s, strict=True))


def spread(a: Times, b: Times) -> str:
    """The least and the most that a took longer than b in one round."""
    quotients = sorted(x / y - 1 for x, y in zip(a.seconds_s, b.seconds_s, strict=True))
    return f"{quotients[0]:+.1%} .. {quotients[-1]:+.1%}"


def ranks(values: list[float]) -> list[float]:
    """Ranks from 1, ties shared."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [0.0] * len(values)
    for rank, index in enumerate(order):
        same = [r for r, i in enumerate(order) if values[i] == values[index]]
        found[index] = 1 + statistics.mean(same) if len(same) > 1 else 1 + rank
    return found


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's rho."""
    return statistics.correlation(ranks(a), ranks(b))
