"""Cut points of every schedule of every choice: what has run, what has to be resident, what may be rematerialised.

A cut point is where the first recipe of a place is about to run, or where a segment returns to the caller.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from lowtide.planners.implementations.candidates import ALWAYS, Candidate, Candidates, Owner


class CutPoint(NamedTuple):
    """Before the first run at a place of the program; the end of the segment where the place is the program's end."""

    segment: int
    place: int


class Need(NamedTuple):
    """A value that is needed at or after the cut point, if its owner is chosen; at it: resident, not recomputed."""

    value: int
    owner: Owner
    now: bool


@dataclass(frozen=True)
class Scene:
    """What matters at a cut point.

    Arguments:
        needs: for what runs or is handed over from the cut point on, until the next one.
        values: what may be there, as far as it matters. Increasing.
        candidates: what may be recomputed afterwards, to rematerialise such values. By recipe, increasing.
        later: per value, the options that make it only after the cut point: with them nothing is known about it.
        run_B: what the first run takes by itself, by option; ALWAYS where there is no choice.
        fixed_B: bytes that are there whatever is chosen.
    """

    cut_point: CutPoint
    needs: tuple[Need, ...]
    values: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    later: dict[int, frozenset[Owner]]
    run_B: dict[Owner, int]
    fixed_B: int


def cut_point_of(candidates: Candidates, recipe: int) -> CutPoint:
    """The cut point at which a recipe of some choice runs first."""
    place = min(candidates.place_of[recipe], len(candidates.segment_of) - 1)
    return CutPoint(candidates.segment_of[place], place)


def end_of(candidates: Candidates, segment: int) -> CutPoint:
    """The cut point at which a segment returns to the caller."""
    return CutPoint(segment, len(candidates.segment_of))


def scene_at(
    candidates: Candidates,
    cut_point: CutPoint,
    until: CutPoint | None = None,
    weightless: Collection[int] = (),
    wanted: Collection[int] = (),
) -> Scene:
    """Finds what matters at a cut point.

    Arguments:
        until: the next cut point; None for the end.
        weightless: values that are taken to be there and to weigh nothing.
        wanted: values that matter at the next cut point.

    O(graph).
    """
    look = _Look(candidates, cut_point, frozenset(weightless))
    needs = look.needs(until)
    seen = {n.value for n in needs} | {v for v in wanted if look.is_known(v)}
    stack, again = sorted(seen), dict[tuple[int, Owner], Candidate]()
    while stack:
        for candidate in candidates.makers.get(stack.pop(), ()):
            if candidate.key in again or look.is_after(candidate) or not look.may_recompute(candidate):
                continue
            again[candidate.key] = candidate
            fresh = [v for v in candidate.reads if v not in seen and look.is_known(v)]
            seen.update(fresh)
            stack.extend(fresh)
    return Scene(
        cut_point,
        needs,
        tuple(sorted(seen)),
        tuple(again[r] for r in sorted(again)),
        {v: later for v in seen if (later := look.later(v))},
        look.run_B(),
        candidates.graph.persistent_B,
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
