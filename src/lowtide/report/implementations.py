"""Which implementation each call site runs, what that spares, and what it costs.

A site is a group of recipes of which one option is chosen, a run of the program that could go over a dying input, or
one that is recomputed by a cheaper recipe, from what its first run left.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lowtide.ir.chosen import chosen_options
from lowtide.ir.graph import Graph, Group, Origin, Recipe
from lowtide.ir.in_place import in_place_candidates, plain_candidates
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import PlanRecord
from lowtide.ir.schedule import Run

_IN_PLACE = "in place"


@dataclass(frozen=True, slots=True)
class Site:
    """A call site that does not run what the program runs.

    Arguments:
        what: the family, or the operator.
        candidate: the implementation that was chosen.
        numerics: how far its results may be from the program's.
        spared_B: fewer bytes from forward to backward, or in place: not allocated. What other operators keep anyway
            counts for neither implementation. Less than zero where it takes more.
        at_once_B: fewer bytes while it runs, at the most.
        cost_s: extra seconds of one run of all of it.
        module, source: of the operator in the user's code.
    """

    what: str
    candidate: str
    numerics: Numerics
    spared_B: int
    at_once_B: int
    cost_s: float
    module: str
    source: str


@dataclass(frozen=True, slots=True)
class Implementations:
    """What a plan chose.

    Arguments:
        sites: those that differ from the program's, what spares most first.
        count: of all sites where there was a choice.
    """

    sites: tuple[Site, ...]
    count: int

    def __str__(self) -> str:
        """In a line: `"47 of 61 call sites differ from the program's: 33 x relu from a mask, 14 x add in place"`."""
        if not self.count:
            return ""
        kinds = Counter(f"{s.what} {s.candidate}" for s in self.sites).most_common()
        told = ", ".join(f"{n} x {kind}" for kind, n in kinds)
        return f"{len(self.sites)} of {self.count} call sites differ from the program's" + (f": {told}" if told else "")


def implementations(record: PlanRecord) -> Implementations:
    """Reads off a plan which implementations it runs. O(graph + steps)."""
    graph = record.graph
    ran = frozenset(s.recipe for s in record.schedule.steps if isinstance(s, Run))
    chosen = chosen_options(graph, ran)
    readers = _readers(graph, ran)
    sites = [_site(graph, graph.groups[g], k, readers) for g, k in chosen.items() if k]
    plain = plain_candidates(graph)
    sites += [_over(graph, graph.recipes[r], graph.recipes[plain[r]]) for r in sorted(ran) if r in plain]
    possible = {r for r in in_place_candidates(graph) if r in ran} | {plain[r] for r in ran if r in plain}
    again = _again(graph, ran)
    sites += [_once_more(graph.recipes[r], graph.recipes[first]) for r, first in again.items()]
    sites.sort(key=lambda s: -(s.spared_B + s.at_once_B))
    return Implementations(tuple(sites), len(chosen) + len(possible) + len(again))


def _again(graph: Graph, ran: frozenset[int]) -> dict[int, int]:
    """Recipes that run only where one of the program's is recomputed, which are in no group, and that one."""
    grouped = {r for g in graph.groups for o in g.options for r in o.recipes}.union(graph.program)
    maker = {v: r for r in graph.program for v in graph.recipes[r].outputs}
    others = (graph.recipes[r] for r in sorted(ran - grouped))
    found = (r for r in others if not r.consumes and r.state is None and r.outputs)
    return {r.id: maker[r.outputs[0]] for r in found if r.outputs[0] in maker}


def _readers(graph: Graph, ran: frozenset[int]) -> dict[int, set[int]]:
    """Per value made or given before, the recipes that read it in a later segment."""
    found: dict[int, set[int]] = {}
    for r in ran:
        recipe = graph.recipes[r]
        for value in recipe.read_values:
            if recipe.segment > 0 and _begins(graph, value) < recipe.segment:
                found.setdefault(value, set()).add(r)
    return found


def _begins(graph: Graph, value: int) -> int:
    arrives = graph.values[value].arrives
    return graph.recipes[graph.producers[value][0]].segment if arrives is None else arrives


def _site(graph: Graph, group: Group, option: int, readers: dict[int, set[int]]) -> Site:
    own, other = ([graph.recipes[r] for r in group.options[k].recipes] for k in (0, option))
    members = {r for o in group.options for r in o.recipes}

    def handed_B(recipes: list[Recipe]) -> int:
        """Bytes that only these recipes need from before."""
        values = {v for r in recipes for v in r.read_values if _begins(graph, v) < r.segment}
        alone = (v for v in values if readers.get(v, set()) <= members and not graph.values[v].persistent)
        return sum(graph.values[v].size_B for v in alone if graph.values[v].leaves is None)

    return Site(
        what=group.name.rpartition(" ")[0] or group.name,
        candidate=group.options[option].name,
        numerics=group.options[option].numerics,
        spared_B=handed_B(own) - handed_B(other),
        at_once_B=max((r.trace.peak_B for r in own), default=0) - max((r.trace.peak_B for r in other), default=0),
        cost_s=sum(r.time_s for r in other) - sum(r.time_s for r in own),
        **_place(own),
    )


def _over(graph: Graph, candidate: Recipe, plain: Recipe) -> Site:
    size_B = graph.values[candidate.consumes[0].value].size_B
    return Site(
        what=_name(plain),
        candidate=_IN_PLACE,
        numerics=Numerics.EXACT,
        spared_B=size_B,
        at_once_B=0,
        cost_s=candidate.time_s - plain.time_s,
        **_place([plain]),
    )


def _once_more(candidate: Recipe, first: Recipe) -> Site:
    return Site(
        what=_name(first),
        candidate=f"again by {_name(candidate)}",
        numerics=Numerics.EXACT,
        spared_B=0,
        at_once_B=0,
        cost_s=candidate.time_s - first.time_s,
        **_place([first]),
    )


def _name(recipe: Recipe) -> str:
    parts = recipe.op.split(".")
    return parts[1] if len(parts) > 1 else recipe.op


def _place(recipes: list[Recipe]) -> dict[str, str]:
    origin = next((r.origin for r in recipes if r.origin.module or r.origin.source), Origin())
    return {"module": origin.module, "source": origin.source}
