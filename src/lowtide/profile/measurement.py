"""What one run of an operator taught: seconds, allocator events, and where each result lies. Torch-free.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import math

import msgspec

from lowtide.ir.check_graph import MOST_B, MOST_s, is_sensible
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, MiniTrace, Recipe


class Result(msgspec.Struct, frozen=True):
    """One tensor that an operator returned.

    Arguments:
        path: indices that lead to it in what the operator returned.
        geometry: real, in its storage.
        size_B: bytes of that storage.
        allocation: which allocation of the call holds it; None when none of them does.
        alias: index of the read whose storage it shares; None when it shares none.
    """

    path: tuple[int, ...]
    geometry: Geometry
    size_B: int
    allocation: int | None = None
    alias: int | None = None


class Measurement(msgspec.Struct, frozen=True):
    """One operator signature, measured.

    Arguments:
        time_s: warm median, of the device.
        issue_s: of the processor, to issue one run to a GPU; 0 on CPU.
        events: as in `MiniTrace`; allocations that hold results are not released.
        results: every tensor returned, in the order of their paths.
        workers_B: upper bound of what worker threads hold meanwhile.
        flaw: why the events are not exact, for people; empty when they are.
        scaled: whether the seconds are those of another shape, scaled, and the events those of a single run.
        repeats: whether three runs on equal inputs gave the same bits.
        disturbed: whether other programs took the processor meanwhile, so that the seconds are too many.
    """

    time_s: float
    events: tuple[int, ...]
    results: tuple[Result, ...]
    workers_B: int = 0
    flaw: str = ""
    scaled: bool = False
    repeats: bool = True
    issue_s: float = 0.0
    disturbed: bool = False

    def at(self, path: tuple[int, ...]) -> Result | None:
        """The result at a path; None where the operator returned no tensor there."""
        return next((r for r in self.results if r.path == path), None)

    def trace(self, recipe: Recipe) -> MiniTrace:
        """The measurement as the mini-trace of a recipe.

        A value has one allocation at most, and none where it takes an argument's storage over. Results that the
        recipe does not list die with the call: their releases follow, last to first.
        """
        heirs = {t.output for t in recipe.consumes}
        claimed: set[int] = set()
        outputs: list[int | None] = []
        for position, path in enumerate(output_paths(recipe)):
            found = self.at(path)
            allocation = None if found is None or position in heirs else found.allocation
            outputs.append(None if allocation in claimed else allocation)
            if allocation is not None:
                claimed.add(allocation)
        outputs += [None] * (len(recipe.outputs) - len(outputs))  # the generator's state lies outside the call
        unlisted = {r.allocation for r in self.results if r.allocation is not None} - claimed
        releases = tuple(-(k + 1) for k in sorted(unlisted, reverse=True))
        return MiniTrace((*self.events, *releases), tuple(outputs), self.workers_B, measured=not self.flaw)


def is_sound(measurement: Measurement) -> bool:
    """Whether a measurement can be one: a file may hold anything. O(events)."""
    sizes_B = [e for e in measurement.events if e >= 0]
    made, live = 0, set[int]()
    for event in measurement.events:
        if event >= 0:
            live.add(made)
            made += 1
        elif -event - 1 in live:
            live.remove(-event - 1)
        else:
            return False
    held = {r.allocation for r in measurement.results if r.allocation is not None}
    return (
        math.isfinite(measurement.time_s)
        and 0 <= measurement.time_s <= MOST_s
        and 0 <= measurement.issue_s <= MOST_s
        and 0 <= measurement.workers_B <= MOST_B
        and sum(sizes_B) <= MOST_B
        and live == held
        and all(r.allocation is None or r.size_B == sizes_B[r.allocation] for r in measurement.results)
        and all(0 <= r.size_B <= MOST_B and is_sensible(r.geometry) for r in measurement.results)
    )


def output_paths(recipe: Recipe) -> tuple[tuple[int, ...], ...]:
    """Where a recipe's outputs are in what its operator returns; one that does not say returns them as listed."""
    if recipe.paths:
        return recipe.paths
    saves = recipe.effect is Effect.RANDOM and recipe.state is not None
    count = len(recipe.outputs) - saves
    return ((),) if count == 1 else tuple((i,) for i in range(count))


def resized(events: tuple[int, ...], allocation: int, size_B: int) -> tuple[int, ...]:
    """The same events with another size for one allocation."""
    at = [i for i, event in enumerate(events) if event >= 0][allocation]
    return (*events[:at], size_B, *events[at + 1 :])
