"""Identical layers found by hashing: gaps that play the same part in a network's repeats.

Stages are coloured by what they are (times, bytes, how many outputs, whether they may be recomputed), then, a few
times, by the colours of the stages that they read from and that read from them: colour refinement, as in graph
isomorphism tests (B. Weisfeiler, A. Lehman, 1968). Distances along the program do not count, so a layer's backward is
like another layer's however far it lies from its forward. Colours are numbered exactly: nothing collides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import NDArray

from lowtide.planners.reductions.stages import StageProgram

ROUNDS = 3  # how many edges away layers have to be alike
ALONE = -1


def stage_colours(program: StageProgram, rounds: int = ROUNDS) -> list[int]:
    """Numbers the stages so that those with the same number look the same from nearby.

    Arguments:
        rounds: how many edges away.

    O(graph * rounds).
    """
    stages, size_B = program.stages, program.size_B
    outputs = outputs_of(program)
    place = [k for stage in outputs for k in range(len(stage))]
    colours = _numbered(
        (
            min(s.recipe, 0),
            s.run_ps,
            s.recompute_ps,
            s.trace_B,
            s.recompute_trace_B,
            s.takeover_trace_B,
            tuple(s.reads.index(v) for v, _ in s.takeovers),
            s.recompute_through >= 0,
            tuple(size_B[v] for v in outputs[t]),
            len(s.reads),
        )
        for t, s in enumerate(stages)
    )
    for _ in range(rounds):
        colours = _numbered(
            (
                colours[t],
                tuple((colours[program.producer[v]], place[v]) for v in program.read_ids[t]),
                tuple(tuple(colours[u] for u in program.uses[v]) for v in outputs[t]),
            )
            for t in range(len(stages))
        )
    return colours


def twin_gaps(program: StageProgram, rounds: int = ROUNDS) -> NDArray[np.int32]:
    """Classes of gaps that play the same part in layers that repeat.

    Returns: per gap the number of its class; `ALONE` where nothing is like it, or nothing can be dropped there.

    O(graph * rounds).
    """
    colours, core, outputs = stage_colours(program, rounds), program.core, outputs_of(program)
    keys: list[Hashable] = []
    for v, uses in enumerate(program.uses):
        t = program.producer[v]
        like = (colours[t], v - outputs[t].start, *(colours[u] for u in uses))
        first = len(keys)
        keys.extend([(like, k) if core.is_free(first + k) else None for k in range(len(uses) + 1)])
    alike = Counter(keys)
    numbers: dict[Hashable, int] = {None: ALONE}
    classes = (numbers.setdefault(key, len(numbers) - 1) if alike[key] > 1 else ALONE for key in keys)
    return np.fromiter(classes, dtype=np.int32, count=len(keys))


def outputs_of(program: StageProgram) -> list[range]:
    """Per stage what it produces, by its place in the program."""
    found, at = list[range](), 0
    for stage in program.stages:
        found.append(range(at, at + len(stage.outputs)))
        at += len(stage.outputs)
    return found


def _numbered(keys: Iterable[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
