"""Cut points of a step: what has run there, what has to be resident, what may be rematerialised afterwards.

At a cut point exactly the earlier first runs have happened. A `Scene` is all that the cut model (`cut_model.py`) knows
of one; there are two ways to find it. Of a program whose first runs are fixed, a cut point is where the base recipe of
a stage starts (`stage_scene`), and values and recipes are numbered as in the `StageProgram`. Of all choices of
implementations at once it is where the first recipe of a place is about to run, or where a segment returns to the
caller (`choice_scene`), and values and recipes have the graph's numbers.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lowtide.planners.implementations.candidates import ALWAYS, Candidate, Candidates, Owner
from lowtide.planners.reductions.stages import StageProgram

Key = Hashable
"""What tells a recomputation from others, at every cut point: a stage, or a recipe and the option for which it runs."""


class CutPoint(NamedTuple):
    """Before the first run at a place of the program; the end of the segment where the place is the program's end."""

    segment: int
    place: int


class Need(NamedTuple):
    """A value that is needed at or after the cut point, if its owner is chosen; at it: resident, not recomputed."""

    value: int
    owner: Owner = ALWAYS
    now: bool = False


class Recomputation(NamedTuple):
    """What may be recomputed behind a cut point, if its owner is chosen."""

    key: Key
    recipe: int
    owner: Owner
    outputs: tuple[int, ...]
    reads: tuple[int, ...]
    time_ps: int


@dataclass(frozen=True)
class Scene:
    """What matters at a cut point.

    Arguments:
        values: what may be there, as far as it matters. Increasing.
        needs: for what runs or is handed over from the cut point on, until the next one.
        all_needs: the same up to the end of the step.
        recomputations: what may be recomputed afterwards, to rematerialise such values.
        free_B: what is left of a budget of nothing, whatever is chosen and kept: a negative number.
        there: further values that are there in every schedule, or weigh nothing.
        absent: values that some best solution does without: only one recipe would read them, to rematerialise what
            takes no more bytes and is worth more, and which can be there instead.
        taken: the value that the run at the cut point overwrites if it may go: it is there, and `values` has it as what
            may be there behind the run, which then takes as many bytes more. None if there is no such value.
        later: per value, the options that make it only after the cut point: with them nothing is known about it.
        run_B: what the first run takes by itself, by option.
    """

    values: tuple[int, ...]
    needs: tuple[Need, ...]
    all_needs: tuple[Need, ...]
    recomputations: tuple[Recomputation, ...]
    free_B: int
    there: frozenset[int] = frozenset()
    absent: tuple[int, ...] = ()
    taken: int | None = None
    later: Mapping[int, frozenset[Owner]] = field(default_factory=dict)
    run_B: Mapping[Owner, int] = field(default_factory=dict)

    @property
    def matters(self) -> frozenset[int]:
        """Values of which it has to be said where they come from."""
        return frozenset((*self.values, *self.absent))


def lightest(sizes: Iterable[tuple[int, int]], limit_B: float) -> frozenset[int]:
    """The lightest values, as many as fit in `limit_B`, to be taken to weigh nothing.

    Arguments:
        sizes: bytes and value.
    """
    found, left_B = set[int](), limit_B
    for size_B, v in sorted(sizes):
        left_B -= size_B
        if left_B < 0:
            break
        found.add(v)
    return frozenset(found)


# of a program


def stage_scenes(program: StageProgram, stages: Iterable[int], weightless: Collection[int] = ()) -> tuple[Scene, ...]:
    """What matters where the base recipes of some stages start, in their order.

    Whatever a later cut point speaks of, the earlier ones do, so that no link between two says more than is so.

    Arguments:
        weightless: values that are taken to be there and to weigh nothing. What is proved with them holds without.
    """
    cut_points = sorted(set(stages))
    scenes: list[Scene] = []
    for k in reversed(range(len(cut_points))):
        until = cut_points[k + 1] if k + 1 < len(cut_points) else None
        later = {r.recipe for r in scenes[-1].recomputations} if scenes else ()
        since = cut_points[k - 1] if k else 0
        scenes.append(stage_scene(program, cut_points[k], weightless, until=until, later=later, since=since))
    return tuple(reversed(scenes))


def stage_scene(
    program: StageProgram,
    stage: int,
    weightless: Collection[int] = (),
    *,
    until: int | None = None,
    later: Collection[int] = (),
    since: int = 0,
    may_fetch: bool = False,
) -> Scene:
    """Finds what matters where the base recipe of a stage starts.

    Arguments:
        until: the stage of the next cut point; None for the end. later: stages that the next cut point speaks of
        recomputing. Those that have run by this one may be recomputed as
            well: a value that is made only after this cut, or that is there anyway, may be dropped and be
            rematerialised behind it.
        since: the stage of the cut point before; 0 for none.
        may_fetch: whether values may come back from the host. Then all that is not being read may be away.

    O(values + reads).
    """
    free_B = -(program.core_fixed_B + program.core.least_peak(stage))
    there, needed = set[int](), list[int]()
    taken = None if may_fetch else _taken(program, stage, weightless)
    for v in range(len(program.values)):
        if program.producer[v] >= stage:
            continue
        if _is_there(program, v, stage, may_fetch=may_fetch):
            free_B -= program.size_B[v]
            if v != taken:
                there.add(v)
            elif program.last_use[v] > stage:
                needed.append(v)
        elif program.last_use[v] > stage and v not in weightless:
            needed.append(v)
    there.update(v for v in weightless if program.producer[v] < stage)
    reached = dict.fromkeys(sorted(r for r in later if r < stage))
    seen = {v for r in reached for v in program.read_ids[r] if v not in there}.union(needed)
    stack = sorted(seen)
    while stack:
        recipe = program.producer[stack.pop()]
        if recipe in reached or program.stages[recipe].recompute_through <= stage:
            continue
        reached[recipe] = None
        fresh = [v for v in program.read_ids[recipe] if v not in seen and v not in there]
        seen.update(fresh)
        stack.extend(fresh)
    absent = set[int]()
    if not may_fetch:
        absent = _dominated(program, seen.difference(needed), reached, since, weightless)
    made: dict[int, list[int]] = {r: [] for r in reached}
    for v in range(bisect.bisect_left(program.producer, stage)):
        if program.producer[v] in made:
            made[program.producer[v]].append(v)
    all_needs = tuple(Need(v) for v in needed)
    return Scene(
        values=tuple(sorted(seen.difference(absent))),
        needs=all_needs if until is None else _needs_until(program, stage, until, there),
        all_needs=all_needs,
        recomputations=tuple(
            Recomputation(r, r, ALWAYS, tuple(made[r]), program.read_ids[r], program.stages[r].recompute_ps)
            for r in (reached if may_fetch else sorted(reached))  # another order, other solutions of equal worth
        ),
        free_B=free_B,
        there=frozenset(there),
        absent=tuple(sorted(absent)),
        taken=taken,
    )


def _needs_until(program: StageProgram, stage: int, until: int, there: Collection[int]) -> tuple[Need, ...]:
    """What is read between two cut points of what was made by the first."""
    read = {v for t in range(stage + 1, until) for v in program.read_ids[t] if program.producer[v] < stage}
    return tuple(Need(v) for v in sorted(read.difference(there)))


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


def _is_there(program: StageProgram, value: int, stage: int, *, may_fetch: bool) -> bool:
    """Whether a value that was made is there in every schedule: it is read, held, or nothing can restore it."""
    uses = program.uses[value]
    if stage in uses:
        return True
    if not uses or uses[-1] < stage:
        return False
    start = max((u for u in uses if u < stage), default=program.producer[value])
    lasting = not may_fetch and program.stages[program.producer[value]].recompute_through <= stage
    return lasting or start >= program.pinned_from[value]


# of all choices


def cut_point_of(candidates: Candidates, recipe: int) -> CutPoint:
    """The cut point at which a recipe of some choice runs first."""
    place = min(candidates.place_of[recipe], len(candidates.segment_of) - 1)
    return CutPoint(candidates.segment_of[place], place)


def end_of(candidates: Candidates, segment: int) -> CutPoint:
    """The cut point at which a segment returns to the caller."""
    return CutPoint(segment, len(candidates.segment_of))


def choice_scenes(
    candidates: Candidates, cut_points: Sequence[CutPoint], weightless: Collection[int] = ()
) -> tuple[Scene, ...]:
    """What matters at some cut points of every choice, in order; the earlier ones speak of all that later ones do."""
    scenes: list[Scene] = []
    for k in reversed(range(len(cut_points))):
        until = cut_points[k + 1] if k + 1 < len(cut_points) else None
        scenes.append(choice_scene(candidates, cut_points[k], until, weightless, scenes[-1].values if scenes else ()))
    return tuple(reversed(scenes))


def choice_scene(
    candidates: Candidates,
    cut_point: CutPoint,
    until: CutPoint | None = None,
    weightless: Collection[int] = (),
    later: Collection[int] = (),
) -> Scene:
    """Finds what matters at a cut point of every choice.

    Everything is taken at its best: of recipes that overwrite what they read the cheapest, no bytes for states of the
    generator, nothing about values that some choice makes elsewhere.

    Arguments:
        until: the next cut point; None for the end.
        weightless: values that are taken to be there and to weigh nothing.
        later: values that matter at the next cut point.

    O(graph).
    """
    look = _Look(candidates, cut_point, frozenset(weightless))
    needs = look.needs(until)
    seen = {n.value for n in needs} | {v for v in later if look.is_known(v)}
    stack, again = sorted(seen), dict[tuple[int, Owner], Candidate]()
    while stack:
        for candidate in candidates.makers.get(stack.pop(), ()):
            if candidate.key in again or look.is_after(candidate) or not look.may_recompute(candidate):
                continue
            again[candidate.key] = candidate
            fresh = [v for v in candidate.reads if v not in seen and look.is_known(v)]
            seen.update(fresh)
            stack.extend(fresh)
    run_B = look.run_B()
    return Scene(
        values=tuple(sorted(seen)),
        needs=needs,
        all_needs=needs if until is None else look.needs(None),
        recomputations=tuple(
            Recomputation(key, *key, again[key].outputs, again[key].reads, again[key].recompute_ps or 0)
            for key in sorted(again)
        ),
        free_B=-candidates.graph.persistent_B - run_B.get(ALWAYS, 0),
        later={v: makers for v in seen if (makers := look.later(v))},
        run_B={owner: size_B for owner, size_B in run_B.items() if owner != ALWAYS},
    )


class _Look:
    """A cut point under examination."""

    def __init__(self, candidates: Candidates, cut_point: CutPoint, weightless: frozenset[int]) -> None:
        self.candidates, self.cut_point, self.weightless = candidates, cut_point, weightless
        self.graph = candidates.graph
        self.is_end = cut_point.place == len(candidates.segment_of)
        self.parts = [s.part for s in self.graph.segments]

    def is_before(self, candidate: Candidate) -> bool:
        """Whether its first run came before, whatever was chosen."""
        if candidate.segment != self.cut_point.segment:
            return candidate.segment < self.cut_point.segment
        return candidate.latest < self.cut_point.place

    def is_after(self, candidate: Candidate) -> bool:
        """Whether its first run comes at the cut point or later, whatever is chosen."""
        if candidate.segment != self.cut_point.segment:
            return candidate.segment > self.cut_point.segment
        return not self.is_end and candidate.earliest >= self.cut_point.place

    def may_recompute(self, candidate: Candidate) -> bool:
        if candidate.recompute_ps is None:
            return False
        last = max(
            (s for s in candidate.recompute_segments if self.parts[s] == self.parts[candidate.segment]), default=-1
        )
        return last >= self.cut_point.segment

    def later(self, value: int) -> frozenset[Owner]:
        return frozenset(w.owner for w in self.candidates.makers.get(value, ()) if not self.is_before(w))

    def is_known(self, value: int) -> bool:
        """Whether it matters whether a value is there: it weighs something, and may have been made by now."""
        arrives = self.graph.values[value].arrives
        if value in self.weightless:
            return False
        if arrives is not None:
            return arrives <= self.cut_point.segment
        later = self.later(value)
        return ALWAYS not in later and any(not self.is_after(w) for w in self.candidates.makers.get(value, ()))

    def needs(self, until: CutPoint | None) -> tuple[Need, ...]:
        found: dict[Need, None] = {}
        end = None if until is None else _Look(self.candidates, until, self.weightless)
        for candidate in self.candidates.candidates:
            if candidate.runs and self.is_after(candidate) and (end is None or end.is_before(candidate)):
                found |= {Need(v, candidate.owner, False): None for v in candidate.reads if self.is_known(v)}
        segment = self.cut_point.segment
        for value in self.graph.values:
            if value.leaves is None or value.persistent or value.replaces is not None or not self.is_known(value.id):
                continue
            if (value.leaves == segment and self.is_end) or (value.leaves < segment and value.held):
                found[Need(value.id, ALWAYS, True)] = None
            elif value.leaves >= segment and (until is None or value.leaves < until.segment):
                found[Need(value.id, ALWAYS, False)] = None
        for owner, first in self._first().items():
            read = set.intersection(*(set(w.reads) for w in first))
            found |= {Need(v, owner, True): None for v in sorted(read) if self.is_known(v)}
        return tuple(found)

    def _first(self) -> dict[Owner, list[Candidate]]:
        """By option, who may be the first to run at the cut point."""
        found: dict[Owner, list[Candidate]] = {}
        for candidate in () if self.is_end else self.candidates.at.get(self.cut_point.place, ()):
            found.setdefault(candidate.owner, []).append(candidate)
        return {owner: first for owner, first in found.items() if all(w.runs for w in first)}

    def run_B(self) -> dict[Owner, int]:
        return {owner: min(w.least_B for w in first) for owner, first in self._first().items()}
