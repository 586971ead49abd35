"""One search for a placement in progress: the best offsets, the bound, the work, and who is told about them.

Units: `_B` bytes, `_s` seconds; heights and offsets without a unit count `Arcs.unit_B`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lowtide.errors import PackingError
from lowtide.ir.packing import Packed, Packing, validate
from lowtide.placers.arcs import Arcs, arcs_of
from lowtide.placers.base import Progress, Watch, default_work
from lowtide.placers.bound import bound_B


class Attempt:
    """The mutable state of one placing; placers and their stages share it.

    Invariant: `offsets`, if any, is a placement of the buffers that have bytes, and `height` its height; no placement
    is lower than `bound`.
    """

    def __init__(self, packing: Packing, seed: int, work: int | None, watch: Watch | None = None) -> None:
        self._began_s = time.monotonic()
        validate(packing)
        self.packing = packing
        self.seed = seed
        self.work_limit = default_work(packing) if work is None else work
        self.arcs: Arcs = arcs_of(packing)
        self.bound = bound_B(packing) // self.arcs.unit_B
        self.offsets: list[int] | None = None
        self.height: int | None = None
        self.order: list[int] | None = None  # that led to them, where an order did
        self.best_fit = False
        self.winner = ""
        self.stage = ""
        self.work = 0
        self.stats: dict[str, Any] = {}
        self._watch = watch

    @property
    def elapsed_s(self) -> float:
        """Seconds since the placing began."""
        return time.monotonic() - self._began_s

    @property
    def enough(self) -> int:
        """A placement of this height is good enough to stop."""
        capacity_B = self.packing.capacity_B
        return self.bound if capacity_B is None else max(self.bound, capacity_B // self.arcs.unit_B)

    @property
    def work_left(self) -> int:
        """Effort that may still be spent."""
        return max(0, self.work_limit - self.work)

    @property
    def done(self) -> bool:
        """Whether there is a placement that is good enough."""
        return self.height is not None and self.height <= self.enough

    def tick(self) -> None:
        """Tells the watcher."""
        if self._watch is not None:
            unit_B = self.arcs.unit_B
            height_B = None if self.height is None else self.height * unit_B
            self._watch(Progress(self.stage, self.elapsed_s, height_B, self.bound * unit_B, self.work))

    def offer(self, offsets: list[int], winner: str, order: list[int] | None = None, best_fit: bool = False) -> bool:
        """Takes the offsets if they are lower than the best so far."""
        size = (t.size for t in self.arcs.traits)
        height = max((o + s for o, s in zip(offsets, size, strict=True)), default=0)
        if self.height is not None and height >= self.height:
            return False
        self.offsets, self.height, self.winner, self.order, self.best_fit = offsets, height, winner, order, best_fit
        return True

    def prove(self, bound: int) -> None:
        """Notes a proved lower bound."""
        self.bound = max(self.bound, bound)

    def run(self, name: str, stage: Callable[[Attempt], object]) -> None:
        """Runs one stage, unless the placement is good enough, and notes its seconds."""
        if self.done:
            return
        self.stage = name
        start_s = self.elapsed_s
        self.tick()
        stage(self)
        self.stats[f"{name}_s"] = self.elapsed_s - start_s

    def packed(self, placer: str) -> Packed:
        """The result as it stands."""
        if self.offsets is None or self.height is None:
            raise AssertionError("a placer's first stage always finds a placement")
        unit_B = self.arcs.unit_B
        offsets_B = [b.offset_B or 0 for b in self.packing.buffers]
        for number, offset in zip(self.arcs.numbers, self.offsets, strict=True):
            offsets_B[number] = offset * unit_B
        self.stats |= {"winner": self.winner, "work": self.work}
        return Packed(
            tuple(offsets_B),
            height_B=self.height * unit_B,
            bound_B=self.bound * unit_B,
            placer=placer,
            optimal=self.height == self.bound,
            seconds_s=self.elapsed_s,
            stats=self.stats,
        )


def conduct(attempt: Attempt, placer: str, refusal: str | None, script: Callable[[Attempt], None]) -> Packed:
    """Runs a placer's stages.

    Arguments:
        placer: its name, for the result.
        refusal: why the placer refuses the packing, or None.
        script: runs the stages.

    Raises:
        PackingError: if there is a refusal.
    """
    if refusal is not None:
        raise PackingError(refusal)
    script(attempt)
    return attempt.packed(placer)
