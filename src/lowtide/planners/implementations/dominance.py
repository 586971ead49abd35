"""Options that are never worse than another one of their group: no slower, no hungrier, wanting nothing more.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lowtide.ir.graph import Graph, Group
from lowtide.ir.numerics import Numerics
from lowtide.planners.implementations.candidates import ALWAYS, Owner, Way, Ways

_EQUAL = 1.0 + 1e-9


def better_options(ways: Ways) -> dict[Owner, int]:
    """Finds, per option, the option of its group that is to be taken instead.

    Both run in one place. It takes no longer, reads nothing from outside that the other one does not read, makes
    nothing that stays which the other one does not make, and needs fewer bytes while it runs; of several, the one that
    needs fewest, and of those the closest to the program's results.

    Returns: for options for which there is one. O(recipes of groups).
    """
    found: dict[Owner, int] = {}
    levels = tuple(Numerics)
    places: dict[Owner, set[tuple[int, int]]] = {}
    for way in ways.ways:
        places.setdefault(way.owner, set()).add((way.earliest, way.latest))
    for g, among in ways.options.items():
        group = ways.graph.groups[g]
        facts = {k: _Facts(ways.graph, group, k) for k in among}
        ranked = sorted(among, key=lambda k: (facts[k].most_B, levels.index(group.options[k].numerics), k))
        for k, mine in facts.items():
            for other in ranked:
                if other == k or facts[other].most_B >= mine.most_B:
                    break
                slower = ways.option_ps[g, other] > ways.option_ps[g, k] * _EQUAL
                together = len(places.get((g, k), ())) == 1 and places.get((g, other)) == places[g, k]
                if together and not slower and facts[other].reads <= mine.reads and facts[other].makes <= mine.makes:
                    found[g, k] = other
                    break
    return found


def thrifty(ways: Ways) -> dict[int, int]:
    """The choice of the options that need the fewest bytes while they run. O(recipes of groups)."""
    choice = {}
    for g, among in ways.options.items():
        facts = {k: _Facts(ways.graph, ways.graph.groups[g], k) for k in among}
        choice[g] = min(among, key=lambda k: (facts[k].most_B, ways.option_ps[g, k], k))
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


def reduced(ways: Ways) -> tuple[Ways, dict[int, int]]:
    """The ways without options that no schedule needs: another one of the group does the same, at no greater cost.

    For whatever runs with the option there are recipes of the other one, in the same place, that together bring the
    same about from the same values, first or again, in no more time and bytes.

    Returns: fewer ways, where an option that is alone belongs to none; and what is chosen thereby. What holds for every
        choice among these holds for every choice. O(recipes of groups).
    """
    mine: dict[Owner, list[Way]] = {}
    for way in ways.ways:
        mine.setdefault(way.owner, []).append(way)
    left: dict[int, list[int]] = {}
    for g, among in ways.options.items():
        kept = list(among)
        ranked = sorted(kept, key=lambda k: (ways.option_ps[g, k], -len(mine.get((g, k), ())), k))
        for k in reversed(ranked):
            if any(o != k and _covers(mine.get((g, o), []), mine.get((g, k), [])) for o in kept):
                kept.remove(k)
        left[g] = kept
    return _with(ways, left)


def exact_only(ways: Ways) -> Ways:
    """The ways without options that give other bits: what holds for every choice among these is the smaller menu's.

    O(ways).
    """
    return _with(
        ways,
        {
            g: [k for k in among if ways.graph.groups[g].options[k].numerics is Numerics.EXACT]
            for g, among in ways.options.items()
        },
    )[0]


def _with(ways: Ways, left: Mapping[int, Sequence[int]]) -> tuple[Ways, dict[int, int]]:
    """Fewer options of each group; one that is alone belongs to none, and is what is settled."""
    settled = {g: kept[0] for g, kept in left.items() if len(kept) == 1}
    fewer = tuple(
        replace(way, owner=ALWAYS) if way.owner[0] in settled else way
        for way in ways.ways
        if way.owner == ALWAYS or way.owner[1] in left[way.owner[0]]
    )
    options = {g: tuple(kept) for g, kept in left.items() if len(kept) > 1}
    return Ways(ways.graph, fewer, options), settled


def _covers(one: Sequence[Way], other: Sequence[Way]) -> bool:
    """Whether the recipes of one option can stand for those of another in every schedule that a bound speaks of."""
    if sum(w.run_ps for w in one) > sum(w.run_ps for w in other if w.runs):
        return False
    if not all(w.replaces for w in (*one, *other)):
        return False
    used = set[int]()
    for way in other:
        stand = [w for w in one if set(w.outputs) & set(way.outputs)]
        used |= {w.recipe for w in stand}
        made = {v for w in stand for v in w.outputs}
        read = {v for w in stand for v in w.reads} - made
        again_ps = [w.rerun_ps for w in stand]
        cheaper = way.rerun_ps is None or (None not in again_ps and sum(p or 0 for p in again_ps) <= way.rerun_ps)
        if not cheaper or not made >= set(way.outputs) or not read <= set(way.reads):
            return False
        if any(w.earliest != way.earliest or w.segment != way.segment for w in stand):
            return False
        if any(w.rerun_segments != way.rerun_segments for w in stand):
            return False
        if not stand or min(w.least_B for w in stand) > way.least_B:
            return False
    return used == {w.recipe for w in one}
