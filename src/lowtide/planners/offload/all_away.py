"""The retention for the fewest bytes: everything that may come by fetch is away whenever it is not used.

What a run overwrites is gone in every memory. Where the fullest stage could overwrite a value that is fetched once more
behind it, that value is recomputed there instead, as long as this lowers the peak.

Units: `_B` bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowtide.planners.reductions.stages import StageProgram

Taus = NDArray[np.int32]


def least_away(program: StageProgram) -> Taus:
    """Everything away, and in place where that is fuller. O(stages) retentions are tried, mostly few."""
    state = program.keep_all(0)
    taus = taus_away(program)
    if not state.assign(taus):
        return taus
    peak_B, stage = state.peak_B, state.peak_stage
    tried: set[tuple[int, int]] = set()
    while True:
        candidates = [(stage, v) for v in program.takeover_ids[stage] if (stage, v) not in tried]
        if not candidates:
            return taus
        tried.add(candidates[0])
        other = _recomputed(program, taus, candidates[0][1], stage)
        if other is not None and state.assign(other) and state.peak_B <= peak_B:
            taus, peak_B, stage = other, state.peak_B, state.peak_stage


def taus_away(program: StageProgram) -> Taus:
    """Everything that may come by fetch does so for every need. O(gaps)."""
    core, taus = program.core, program.keep_all(0).taus
    for gap in range(len(taus)):
        if core.is_free(gap) and core.can_fetch(gap):
            taus[gap] = ~(core.gap_start(gap) + 1)
    return taus


def _recomputed(program: StageProgram, taus: Taus, value: int, stage: int) -> Taus | None:
    """The same with a value recomputed, not fetched, behind a stage; None where that cannot be, or is so."""
    core = program.core
    first = sum(len(uses) + 1 for uses in program.uses[:value])
    gaps = [
        g for g in range(first, first + len(program.uses[value]) + 1) if core.gap_start(g) >= stage and taus[g] < -1
    ]
    if not gaps or not all(core.can_recompute(g) for g in gaps):
        return None
    found = taus.copy()
    found[gaps] = ~found[gaps]
    return found
