"""Graph -> every recipe that some choice of options runs, with what holds for every choice.

For each recipe: between which places of the program it runs first, whether it runs whenever its option is chosen, and
the least that a run takes. A place is that of the program's own recipe; what `choose` puts next to one has its place.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lowtide.ir.graph import Effect, Graph, Recipe
from lowtide.ir.in_place import in_place_candidates
from lowtide.planners.reductions.hidden_values import hidden_for

Owner = tuple[int, int]
"""A group and one of its options."""

ALWAYS: Owner = (-1, -1)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recipe that the program of some choice runs; one candidate for each option that has it.

    Arguments:
        owner: whose it is; ALWAYS if every option of its group has it, or it belongs to none with a choice.
        earliest, latest: places between which its first run comes, whatever the other groups have.
        replaces: whether it takes the place of what it replaces, so that nothing else comes first there.
        runs: whether it runs in every schedule of a choice with its option; else its results may not be needed.
        outputs, reads: without persistent values, the generator's states, and what is hidden to make recomputations
            cheap.
        run_ps: of a first run.
        least_B: what it takes by itself, in the best case: in place.
        recompute_ps: of a recomputation, in the best case; None if it never is.
        recompute_segments: the segments in which it may be recomputed.
    """

    recipe: int
    owner: Owner
    segment: int
    earliest: int
    latest: int
    replaces: bool
    runs: bool
    outputs: tuple[int, ...]
    reads: tuple[int, ...]
    run_ps: int
    least_B: int
    recompute_ps: int | None
    recompute_segments: range

    @property
    def key(self) -> tuple[int, Owner]:
        """What tells it from all others."""
        return self.recipe, self.owner


@dataclass(frozen=True)
class Candidates:
    """All candidates of a graph; see the module.

    Arguments:
        options: group -> options among which there is a choice; none with fewer than two.
    """

    graph: Graph
    candidates: tuple[Candidate, ...]
    options: Mapping[int, tuple[int, ...]]

    @property
    def groups(self) -> tuple[int, ...]:
        """Those with a choice."""
        return tuple(self.options)

    @cached_property
    def makers(self) -> dict[int, tuple[Candidate, ...]]:
        """Who makes a value."""
        return _by_value((v, w) for w in self.candidates for v in w.outputs)

    @cached_property
    def readers(self) -> dict[int, tuple[Candidate, ...]]:
        """Who reads a value."""
        return _by_value((v, w) for w in self.candidates for v in w.reads)

    @cached_property
    def at(self) -> dict[int, tuple[Candidate, ...]]:
        """Who may be the first to run at a place."""
        found: dict[int, list[Candidate]] = {}
        for candidate in self.candidates:
            if candidate.replaces and candidate.earliest == candidate.latest:
                found.setdefault(candidate.earliest, []).append(candidate)
        return {place: tuple(candidates) for place, candidates in found.items()}

    @cached_property
    def place_of(self) -> dict[int, int]:
        """The earliest place of a recipe."""
        return {w.recipe: w.earliest for w in self.candidates}

    @cached_property
    def segment_of(self) -> tuple[int, ...]:
        """Per place its segment."""
        return tuple(self.graph.recipes[r].segment for r in self.graph.program)

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """Per segment its first place, and the end."""
        return tuple(sum(s < k for s in self.segment_of) for k in range(len(self.graph.segments) + 1))

    @cached_property
    def sure_ps(self) -> int:
        """Time of the first runs that no choice avoids."""
        return sum(w.run_ps for w in self.candidates if w.owner == ALWAYS and w.runs)

    @cached_property
    def option_ps(self) -> dict[Owner, int]:
        """Time of the first runs that come with an option."""
        found = {(g, k): 0 for g, options in self.options.items() for k in options}
        for candidate in self.candidates:
            if candidate.owner != ALWAYS and candidate.runs:
                found[candidate.owner] += candidate.run_ps
        return found

    @cached_property
    def least_ps(self) -> int:
        """No schedule of any choice takes less time."""
        return self.sure_ps + sum(min(self.option_ps[g, k] for k in options) for g, options in self.options.items())

    @cached_property
    def fastest(self) -> dict[int, int]:
        """The choice of the fastest option of every group, the program's own where none is faster."""
        return {g: min((self.option_ps[g, k], k) for k in options)[1] for g, options in self.options.items()}


def all_candidates(graph: Graph) -> Candidates:
    """Finds a graph's candidates.

    Arguments:
        graph: not refused, with its own options in the program.

    O(graph * depth of what options read from each other).
    """
    options = {g: tuple(range(len(group.options))) for g, group in enumerate(graph.groups) if len(group.options) > 1}
    owners = _owners(graph, options)
    program = set(graph.program)
    ids = [*graph.program, *(r for r in owners if r not in program)]
    places = _places(graph, ids, owners)
    deeds = [(r, owner) for r in ids for owner in owners.get(r, (ALWAYS,))]
    runs = _running(graph, sorted(deeds, key=lambda d: -places[d[0]][1]), options)
    in_place = in_place_candidates(graph)
    again, small = _again(graph, ids)
    hidden = {v.id for v in graph.values if v.persistent} | _states(graph) | small
    return Candidates(graph, tuple(
        Candidate(
            r,
            owner,
            graph.recipes[r].segment,
            *places[r],
            runs=(r, owner) in runs,
            outputs=tuple(v for v in graph.recipes[r].outputs if v not in hidden),
            reads=tuple(v for v in graph.recipes[r].read_values if v not in hidden),
            run_ps=_ps(graph.recipes[r]),
            least_B=min(graph.recipes[w].trace.peak_B for w in (r, *in_place.get(r, ()))),
            recompute_ps=min((_ps(w) for w in again[r]), default=None),
            recompute_segments=_recompute_segments(graph, graph.recipes[r], again[r]),
        )
        for r, owner in deeds
    ), options)  # fmt: skip


def _by_value(pairs: Iterable[tuple[int, Candidate]]) -> dict[int, tuple[Candidate, ...]]:
    found: dict[int, list[Candidate]] = {}
    for value, candidate in pairs:
        found.setdefault(value, []).append(candidate)
    return {value: tuple(candidates) for value, candidates in found.items()}


def _ps(recipe: Recipe) -> int:
    return round(recipe.time_s * 1e12)


def _owners(graph: Graph, options: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[Owner, ...]]:
    """Per recipe of a group the options that have it; ALWAYS where all have it."""
    found: dict[int, tuple[Owner, ...]] = {}
    for g, among in options.items():
        for k in among:
            for r in graph.groups[g].options[k].recipes:
                found[r] = (*found.get(r, ()), (g, k))
    return {r: (ALWAYS,) if len(mine) == len(options[mine[0][0]]) else mine for r, mine in found.items()}


def _places(
    graph: Graph, ids: Sequence[int], owners: Mapping[int, Sequence[Owner]]
) -> dict[int, tuple[int, int, bool]]:
    """Per recipe the earliest and the latest place of its first run, and whether it takes the place of another.

    What no choice undercuts, and what none exceeds: both bounds rise to a fixed point, as in `choose` for one choice.
    """
    program = {r: i for i, r in enumerate(graph.program)}
    begins: dict[int, int] = {}
    for r in graph.program:
        begins.setdefault(graph.recipes[r].segment, program[r])
    high = {v: program[r] for r in graph.program for v in graph.recipes[r].outputs}
    shared = {r for g in graph.groups for o in g.options[1:] for r in o.recipes if r in program}
    others = [r for r in ids if r not in program or r in shared]
    made = {v for r in others for v in graph.recipes[r].outputs}
    low = {v: p for v, p in high.items() if v not in made}
    found = {r: (p, p, True) for r, p in program.items()}
    least: dict[int, int] = {}
    for r in others:
        if r in shared:
            least[r] = program[r]
            continue
        replaced = graph.groups[owners[r][0][0]].options[0].recipes
        own = [program[q] for q in replaced for v in graph.recipes[q].outputs if v in graph.recipes[r].outputs]
        least[r] = min(own, default=begins.get(graph.recipes[r].segment, len(graph.program)) - 1)
        found[r] = (least[r], least[r], bool(own))
    makers: dict[int, list[int]] = {v: [] for v in made}
    for r in dict.fromkeys((*program, *others)):
        for v in graph.recipes[r].outputs:
            if v in made:
                makers[v].append(r)
    changed = True
    while changed:
        low |= {v: min(found[r][0] for r in rs) for v, rs in makers.items()}
        high |= {v: max(found[r][1] for r in rs) for v, rs in makers.items()}
        changed = False
        for r in others:
            reads = [v for v in graph.recipes[r].read_values if v in high]
            earliest = max([least[r], *(low[v] for v in reads)])
            latest = max([least[r], *(high[v] for v in reads)])
            if found[r][:2] != (earliest, latest):
                found[r], changed = (earliest, latest, found[r][2] and latest == least[r]), True
    return found


def _running(
    graph: Graph, deeds: Sequence[tuple[int, Owner]], options: Mapping[int, tuple[int, ...]]
) -> set[tuple[int, Owner]]:
    """Recipes that run in every schedule of a choice with their option: a recipe that runs needs what they make.

    Arguments:
        deeds: recipes and owners, the last to run first, so that one pass finds nearly all.
    """
    runs: set[tuple[int, Owner]] = set()
    needed: dict[int, set[Owner]] = {v.id: {ALWAYS} for v in graph.values if v.leaves is not None}
    found = -1
    while found < len(runs):
        found = len(runs)
        for deed in deeds:
            recipe, mine = graph.recipes[deed[0]], deed[1]
            is_needed = any(ALWAYS in by or mine in by for by in (needed.get(v, ()) for v in recipe.outputs))
            if deed in runs or not (is_needed or recipe.effect is not Effect.PURE):
                continue
            runs.add(deed)
            for v in recipe.read_values:
                by = needed.setdefault(v, set())
                by.add(mine)
                if mine != ALWAYS and all((mine[0], other) in by for other in options[mine[0]]):
                    by.add(ALWAYS)
    return runs


def _states(graph: Graph) -> set[int]:
    return {r.state for r in graph.recipes if r.state is not None}


def _again(graph: Graph, ids: Sequence[int]) -> tuple[dict[int, list[Recipe]], set[int]]:
    """Per recipe those that may run where it is recomputed, and the values that are hidden for their sake."""
    found: dict[int, list[Recipe]] = {}
    hidden: set[int] = set()
    running = set(ids)
    others: dict[int, list[Recipe]] = {}
    for recipe in graph.recipes:
        if recipe.id not in running and recipe.effect is Effect.PURE and not recipe.consumes:
            for v in recipe.outputs:
                others.setdefault(v, []).append(recipe)
    for r in ids:
        recipe = graph.recipes[r]
        found[r] = [recipe] if recipe.effect is Effect.PURE else []
        for candidate in {w.id: w for v in recipe.outputs for w in others.get(v, ())}.values():
            if recipe.effect is Effect.RANDOM and recipe.state is not None and candidate.state == recipe.state:
                found[r] += [candidate] if candidate.outputs == recipe.outputs[:-1] else []
            elif small := hidden_for(graph, recipe, candidate):
                found[r].append(candidate)
                hidden.update(small)
    return found, hidden


def _recompute_segments(graph: Graph, recipe: Recipe, again: Iterable[Recipe]) -> range:
    """The segments from the recipe's own to the last in which all that some recomputation reads may be read."""
    last = recipe.segment - 1
    for candidate in again:
        through = [graph.values[v].readable_through for v in candidate.read_values]
        last = max(last, min([t for t in through if t is not None], default=len(graph.segments) - 1))
    return range(recipe.segment, last + 1)
