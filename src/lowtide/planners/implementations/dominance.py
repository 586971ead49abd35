"""Options that dominate another one of their group: no slower, no larger, with no further reads.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lowtide.ir.graph import Graph, Group
from lowtide.ir.numerics import Numerics
from lowtide.planners.implementations.candidates import ALWAYS, Candidate, Candidates, Owner

_EQUAL = 1.0 + 1e-9


def better_options(candidates: Candidates) -> dict[Owner, int]:
    """Finds, per option, the option of its group that is to be taken instead.

    Both run in one place. It takes no longer, reads nothing from outside that the other one does not read, makes
    nothing that is kept which the other one does not make, and needs fewer bytes while it runs; of several, the one
    that needs fewest, and of those the closest to the program's results.

    Returns: for options for which there is one. O(recipes of groups).
    """
    found: dict[Owner, int] = {}
    levels = tuple(Numerics)
    places: dict[Owner, set[tuple[int, int]]] = {}
    for candidate in candidates.candidates:
        places.setdefault(candidate.owner, set()).add((candidate.earliest, candidate.latest))
    for g, among in candidates.options.items():
        group = candidates.graph.groups[g]
        facts = {k: _Facts(candidates.graph, group, k) for k in among}
        ranked = sorted(among, key=lambda k: (facts[k].most_B, levels.index(group.options[k].numerics), k))
        for k, mine in facts.items():
            for other in ranked:
                if other == k or facts[other].most_B >= mine.most_B:
                    break
                slower = candidates.option_ps[g, other] > candidates.option_ps[g, k] * _EQUAL
                together = len(places.get((g, k), ())) == 1 and places.get((g, other)) == places[g, k]
                if together and not slower and facts[other].reads <= mine.reads and facts[other].makes <= mine.makes:
                    found[g, k] = other
                    break
    return found


def thrifty(candidates: Candidates) -> dict[int, int]:
    """The choice of the options that need the fewest bytes while they run. O(recipes of groups)."""
    choice = {}
    for g, among in candidates.options.items():
        facts = {k: _Facts(candidates.graph, candidates.graph.groups[g], k) for k in among}
        choice[g] = min(among, key=lambda k: (facts[k].most_B, candidates.option_ps[g, k], k))
    return {g: k for g, k in choice.items() if k}


class _Facts:
    """What an option reads from outside, what it makes, and the most bytes while its recipes run one after another."""

    def __init__(self, graph: Graph, group: Group, option: int) -> None:
        recipes = [graph.recipes[r] for r in group.options[option].recipes]
        self.makes = frozenset(v for r in recipes for v in r.outputs)
        inside = self.makes
        self.reads = frozenset(v for r in recipes for v in r.read_values if v not in inside)
        movable = {v for v in self.reads if not graph.values[v].persistent}
        last = {v: i for i, r in enumerate(recipes) for v in r.read_values}
        live = set(movable)
        self.most_B = 0
        for i, recipe in enumerate(recipes):
            self.most_B = max(self.most_B, sum(graph.values[v].size_B for v in live) + recipe.trace.peak_B)
            live |= set(recipe.outputs)
            live -= {v for v in live & movable if last[v] <= i}


def reduced(candidates: Candidates) -> tuple[Candidates, dict[int, int]]:
    """The candidates without options that no schedule needs: another one of the group does the same, at no greater
    cost.

    For whatever runs with the option there are recipes of the other one, in the same place, that together make the same
    from the same values, first or again, in no more time and bytes.

    Returns: fewer candidates, where an option that is alone belongs to none; and what is chosen thereby. What holds for
        every choice among these holds for every choice. O(recipes of groups).
    """
    mine: dict[Owner, list[Candidate]] = {}
    for candidate in candidates.candidates:
        mine.setdefault(candidate.owner, []).append(candidate)
    left: dict[int, list[int]] = {}
    for g, among in candidates.options.items():
        kept = list(among)
        ranked = sorted(kept, key=lambda k: (candidates.option_ps[g, k], -len(mine.get((g, k), ())), k))
        for k in reversed(ranked):
            if any(o != k and _covers(mine.get((g, o), []), mine.get((g, k), [])) for o in kept):
                kept.remove(k)
        left[g] = kept
    return _with(candidates, left)


def exact_only(candidates: Candidates) -> Candidates:
    """The candidates without options that give other bits: what holds for every choice among these is the smaller
    menu's.

    O(candidates).
    """
    return _with(
        candidates,
        {
            g: [k for k in among if candidates.graph.groups[g].options[k].numerics is Numerics.EXACT]
            for g, among in candidates.options.items()
        },
    )[0]


def _with(candidates: Candidates, left: Mapping[int, Sequence[int]]) -> tuple[Candidates, dict[int, int]]:
    """Fewer options of each group; one that is alone belongs to none, and is what is settled."""
    settled = {g: kept[0] for g, kept in left.items() if len(kept) == 1}
    fewer = tuple(
        replace(candidate, owner=ALWAYS) if candidate.owner[0] in settled else candidate
        for candidate in candidates.candidates
        if candidate.owner == ALWAYS or candidate.owner[1] in left[candidate.owner[0]]
    )
    options = {g: tuple(kept) for g, kept in left.items() if len(kept) > 1}
    return Candidates(candidates.graph, fewer, options), settled


def _covers(one: Sequence[Candidate], other: Sequence[Candidate]) -> bool:
    """Whether the recipes of one option can stand for those of another in every schedule that a bound speaks of."""
    if sum(w.run_ps for w in one) > sum(w.run_ps for w in other if w.runs):
        return False
    if not all(w.replaces for w in (*one, *other)):
        return False
    used = set[int]()
    for candidate in other:
        stand = [w for w in one if set(w.outputs) & set(candidate.outputs)]
        used |= {w.recipe for w in stand}
        made = {v for w in stand for v in w.outputs}
        read = {v for w in stand for v in w.reads} - made
        again_ps = [w.recompute_ps for w in stand]
        cheaper = candidate.recompute_ps is None or (
            None not in again_ps and sum(p or 0 for p in again_ps) <= candidate.recompute_ps
        )
        if not cheaper or not made >= set(candidate.outputs) or not read <= set(candidate.reads):
            return False
        if any(w.earliest != candidate.earliest or w.segment != candidate.segment for w in stand):
            return False
        if any(w.recompute_segments != candidate.recompute_segments for w in stand):
            return False
        if not stand or min(w.least_B for w in stand) > candidate.least_B:
            return False
    return used == {w.recipe for w in one}
