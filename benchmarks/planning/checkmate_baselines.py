"""Checkmate's baselines as its authors publish them: sets of checkpoints, with what they hold needlessly.

P. Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization", MLSys 2020. A baseline says
which values are there when each stage begins; what runs again follows from that with the fewest reruns. lowtide's own
planners of the same names drop a value after its last use, and so need fewer bytes.

Units: `_B` bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence

from benchmarks.planning.checkmate_models import Layer
from lowtide.ir.graph import Graph
from lowtide.ir.schedule import Boundary, Drop, Run, Schedule, Step
from lowtide.planners.classic.revolve import beta

Held = list[set[int]]  # per stage the recipes whose values it begins with


def every_root(candidates: Sequence[int]) -> tuple[int, ...]:
    """Square root of n: every k-th candidate, k the root of their number, rounded down."""
    k = math.isqrt(len(candidates))
    return tuple(candidates[k - 1 :: k])


def articulation_points(layers: Sequence[Layer]) -> tuple[int, ...]:
    """Layers that no way through the network leads past."""
    furthest, found = -1, []
    last = {origin: k for k, layer in enumerate(layers) for origin in layer.reads}
    for k in range(len(layers)):
        if furthest <= k:
            found.append(k)
        furthest = max(furthest, last.get(k, k))
    return tuple(found)


def greedy(layers: Sequence[Layer], candidates: Collection[int], most_B: float) -> tuple[int, ...]:
    """Chen's greedy: a candidate is a checkpoint when what was passed since the last one exceeds some bytes."""
    chosen, passed_B = [], 0
    for k, layer in enumerate(layers):
        passed_B += layer.size_B
        if k in candidates and passed_B > most_B:
            chosen.append(k)
            passed_B = 0
    return tuple(chosen)


def baseline(graph: Graph, checkpoints: Collection[int]) -> Schedule:
    """The schedule for a set of checkpoints.

    A checkpointed layer's output is held to the end of the step, not to its last use, and so are whole segments
    between checkpoints while one of their layers goes backward. That is why checkpointing all of VGG-19 is published
    with more bytes than keeping every value until its last use takes.

    Arguments:
        graph: from `training`.
        checkpoints: layers.
    """
    count = len(graph.program)
    layers = count // 2
    parents, held = _least(graph)
    for k, origins in enumerate(parents):
        for origin in origins:
            held[k].add(origin)
    for c in checkpoints:
        for t in range(c + 1, count):
            held[t].add(c)
    bounds = [0, *(c for c in sorted(checkpoints) if c > 0), layers + 1]
    for first, stop in itertools.pairwise(bounds):
        segment = range(first, stop)
        for t in range(first, stop + 1):
            held[t].update(range(first, min(t, stop)))
        for x in segment:
            backward = count - 1 - x
            held[backward].update(i for i in segment if i < backward)
            if backward > layers:  # the gradients of a segment stay until it is done
                for t in range(backward + 1, count - first):
                    held[t].add(backward)
    return Schedule(tuple(_steps(parents, held, layers + 1)))


def published_revolve(graph: Graph, slots: int) -> Schedule:
    """Revolve as Checkmate maps it onto a chain of layers, one slot being what it works in.

    The tables that it reads are not to be had any more. Among what its code leaves open, this has the published
    figures of VGG-19 with five slots, in bytes and in every digit of the multiplications: the steps are the layers
    behind the first; the splits are those of A. Griewank, A. Walther, "Algorithm 799: revolve", ACM Transactions on
    Mathematical Software 26 (2000); a checkpoint is the output of the layer at which it is taken, held until the
    gradient of the layer before it; the state before the first step is not held; and of all else, each stage finds what
    the stage before it brought, and the gradients.

    Arguments:
        graph: of a network without skips, from `training`.
    """
    count = len(graph.program)
    steps = count // 2 - 1
    parents, held = _least(graph)
    for t in range(1, count):
        held[t].add(t - 1)
    # Reverse steps first to stop, `free` checkpoints in hand, beginning in a stage; 0 is the first sweep.
    stack = [(0, steps, slots - 1, 0)]
    while stack:
        first, stop, free, begun = stack.pop()
        if stop - first > 1 and free > 1:
            middle = first + split_799(stop - first, free)
            for t in range(max(begun + 1, middle + 2), count - middle):
                held[t].add(middle + 1)
            stack += [(first, middle, free, count - middle), (middle, stop, free - 1, begun)]
    return Schedule(tuple(_steps(parents, held, count // 2 + 1)))


def split_799(steps: int, slots: int) -> int:
    """How far Algorithm 799 advances before the next checkpoint: one of several best choices."""
    repeats = 0
    while beta(slots, repeats) < steps:
        repeats += 1

    def longest(fewer: int, less: int) -> int:
        return beta(slots - fewer, repeats - less) if slots >= fewer else 0

    if steps <= longest(0, 1) + longest(2, 1):
        return max(1, longest(0, 2))
    if steps >= longest(0, 0) - longest(3, 0):
        return longest(0, 1)
    return steps - longest(1, 1) - longest(2, 1)


def _least(graph: Graph) -> tuple[list[list[int]], Held]:
    """What each recipe reads, and what stays in all baselines: a gradient, until the last gradient that reads it."""
    count = len(graph.program)
    held: Held = [set() for _ in range(count + 1)]
    parents = [[v.value - 1 for v in graph.recipes[k].reads if v.value] for k in range(count)]
    for k, origins in enumerate(parents):
        for origin in origins:
            if origin > count // 2:
                for t in range(origin + 1, k + 1):
                    held[t].add(origin)
    return parents, held


def _steps(parents: list[list[int]], held: Held, backward: int) -> Iterator[Step]:
    """Per stage what runs again for its values and the next stage's, in order, and what is dropped once."""
    there: set[int] = set()
    yield Boundary(0)
    for t in range(len(parents)):
        if t == backward:
            yield Boundary(1)
        later = held[t + 1] if t + 1 < len(parents) else set()
        order = [t]
        wanted = [*parents[t], *(v for v in later if v < t)]
        while wanted:
            v = wanted.pop()
            if v not in there and v not in order:
                order.append(v)
                wanted += parents[v]
        order.sort()
        for v in sorted(there - later - {u for k in order for u in parents[k]}):
            there.discard(v)
            yield Drop(v + 1)
        for place, k in enumerate(order):
            still = later | {u for r in order[place + 1 :] for u in parents[r]}
            last = k == len(parents) - 1
            yield Run(k, (k + 1,) if k in still or last else ())
            there |= {k} if k in still else set()
            for v in sorted(there - still):
                there.discard(v)
                yield Drop(v + 1)
