"""A cut point of a schedule: where the base recipe of a stage starts, all earlier stages having had their first run.

Which values are resident there, which may be or are rematerialised later, and which recipes can do that.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lowtide.planners.reductions.stages import StageProgram


@dataclass(frozen=True)
class Cut:
    """What matters at a cut point; values by their place in the program, recipes by their stage.

    Arguments:
        stage: whose base recipe starts.
        forced: values that are there in every schedule: the stage reads them, or nothing can rematerialise them later.
        needed: further values that a later stage reads.
        values: what may be there: the needed ones, and what rematerialises them without being forced. Increasing.
        absent: values that some best solution does without: only one recipe would read them, to rematerialise what
            takes no more bytes and is worth more, and which can be there instead.
        recipes: what may be recomputed afterwards. Increasing.
        free_B: what values at the cut point itself, persistent ones and the stage's own run leave of a budget, as a
            negative number; the run overwrites what it can.
        taken: the value that the run overwrites if it may go: it is there at the cut point, and `values` has it as what
            may be there behind the run, which then takes as many bytes more. None if there is no such value.
    """

    program: StageProgram
    stage: int
    forced: frozenset[int]
    needed: tuple[int, ...]
    values: tuple[int, ...]
    absent: tuple[int, ...]
    recipes: tuple[int, ...]
    free_B: int
    taken: int | None = None

    def gap(self, value: int) -> int:
        """The gap in which it is decided whether a value of `values` or `absent` is there."""
        return self.program.core.gap_at(value, self.stage + (value == self.taken))

    def recomputations(self, kept: Collection[int]) -> frozenset[int]:
        """Recipes that have to be recomputed if just `kept` is there."""
        found, stack = set[int](), [v for v in self.needed if v not in kept]
        while stack:
            recipe = self.program.producer[stack.pop()]
            if recipe not in found:
                found.add(recipe)
                stack.extend(v for v in self.program.read_ids[recipe] if v not in kept)
        return frozenset(found)


def cut_at(
    program: StageProgram,
    stage: int,
    weightless: Collection[int] = (),
    later: Collection[int] = (),
    since: int = 0,
) -> Cut:
    """Finds what matters when the base recipe of a stage starts.

    Arguments:
        weightless: values that are taken to be there and to weigh nothing. What is proved with them holds without.
        later: recipes of the next cut. Those that have run by this one may be recomputed as well: a value that is made
            only after this cut, or that is there anyway, may be dropped and be rematerialised behind it.
        since: the stage of the cut before; 0 for none.

    O(values + reads).
    """
    free_B = -(program.core_fixed_B + program.core.least_peak(stage))
    forced, needed = set[int](), list[int]()
    taken = _taken(program, stage, weightless)
    for v in range(len(program.values)):
        if program.producer[v] >= stage:
            continue
        if _is_forced(program, v, stage):
            free_B -= program.size_B[v]
            if v != taken:
                forced.add(v)
            elif program.last_use[v] > stage:
                needed.append(v)
        elif program.last_use[v] > stage and v not in weightless:
            needed.append(v)
    there = forced.union(v for v in weightless if program.producer[v] < stage)
    reached = {r for r in later if r < stage}
    seen = {v for r in reached for v in program.read_ids[r] if v not in there}.union(needed)
    stack = sorted(seen)
    while stack:
        recipe = program.producer[stack.pop()]
        if recipe in reached or program.stages[recipe].recompute_through <= stage:
            continue
        reached.add(recipe)
        fresh = [v for v in program.read_ids[recipe] if v not in seen and v not in there]
        seen.update(fresh)
        stack.extend(fresh)
    absent = _dominated(program, seen.difference(needed), reached, since, weightless)
    values = tuple(sorted(seen.difference(absent)))
    return Cut(
        program,
        stage,
        frozenset(there),
        tuple(needed),
        values,
        tuple(sorted(absent)),
        tuple(sorted(reached)),
        free_B,
        taken,
    )


def _taken(program: StageProgram, stage: int, weightless: Collection[int]) -> int | None:
    """The only value that the run of a stage may overwrite, if as many bytes are spared by that."""
    found = program.takeover_ids[stage]
    spared_B = program.stages[stage].trace_B - program.core.least_peak(stage)
    sole = len(found) == 1 and found[0] not in weightless and spared_B == program.size_B[found[0]] > 0
    return found[0] if sole else None


def _dominated(
    program: StageProgram, values: Collection[int], recipes: Collection[int], since: int, weightless: Collection[int]
) -> set[int]:
    """Values that are worth less than what their only reader produces, and take no fewer bytes.

    Instead of such a value, what its reader produces is there: the reader ran, or is recomputed, while the value was
    there last. That costs nothing more if the reader had its first run since the cut before, or needs nothing else for
    it.
    """
    readers: dict[int, list[int]] = {v: [] for v in values}
    for r in recipes:
        for v in program.read_ids[r]:
            if v in readers:
                readers[v].append(r)
    brought_B: dict[int, int] = {}
    for v, t in enumerate(program.producer):
        brought_B[t] = brought_B.get(t, 0) + program.size_B[v]

    def is_free(r: int) -> bool:
        return r >= since or sum(v not in weightless for v in program.read_ids[r]) == 1

    return {
        v
        for v, reading in readers.items()
        if len(reading) == 1 and brought_B[reading[0]] <= program.size_B[v] and is_free(reading[0])
    }


def _is_forced(program: StageProgram, value: int, stage: int) -> bool:
    uses = program.uses[value]
    if stage in uses:
        return True
    if not uses or uses[-1] < stage:
        return False
    start = max((u for u in uses if u < stage), default=program.producer[value])
    return program.stages[program.producer[value]].recompute_through <= stage or start >= program.pinned_from[value]
