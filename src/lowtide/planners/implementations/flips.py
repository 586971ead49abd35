"""Which other choices are worth a try: of groups that a plan suffers from, all alike at once first, then singly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator

from lowtide._core import Retention
from lowtide.ir.graph import Graph, Group
from lowtide.planners.implementations.candidates import Candidates
from lowtide.planners.reductions.stages import StageProgram

_FULL = 0.98  # of the peak: there memory is short
_SINGLES = 12

Choice = dict[int, int]


def flips(candidates: Candidates, choice: Choice, program: StageProgram, state: Retention | None) -> Iterator[Choice]:
    """Other choices, the most promising first.

    Arguments:
        choice: what is chosen now.
        program: of that choice.
        state: its plan, or what came closest to one.

    O(graph), and what is asked for.
    """
    pains = _pains(candidates, program, state)
    classes: dict[Hashable, list[int]] = defaultdict(list)
    for g in candidates.groups:
        classes[_likeness(candidates.graph, g), choice.get(g, 0)].append(g)
    ranked = sorted(classes.values(), key=lambda c: (-sum(pains.get(g, 0.0) for g in c), c[0]))
    for members in ranked:
        for k in candidates.options[members[0]]:
            if k != choice.get(members[0], 0):
                yield {**choice, **dict.fromkeys(members, k)}
    singles = sorted((g for g in candidates.groups if pains.get(g)), key=lambda g: (-pains[g], g))
    for g in singles[:_SINGLES]:
        for k in candidates.options[g]:
            if k != choice.get(g, 0):
                yield {**choice, g: k}


def _pains(candidates: Candidates, program: StageProgram, state: Retention | None) -> dict[int, float]:
    """Per group the recompute time spent on what it reads, and whether the plan is full where it runs."""
    if state is None:
        return {}
    group_of = {r: g for g in candidates.groups for o in candidates.graph.groups[g].options for r in o.recipes}
    pains: dict[int, float] = defaultdict(float)
    begin, recomputations = state.recomputations()
    live_B = state.live_B()
    full = live_B >= _FULL * live_B.max(initial=0)
    total = max(1, sum(program.stages[r].recompute_ps for r in recomputations.tolist()))
    for t, stage in enumerate(program.stages):
        again = recomputations[begin[t] : begin[t + 1]].tolist()
        group = group_of.get(stage.recipe)
        if group is not None:
            pains[group] += sum(program.stages[r].recompute_ps for r in again) / total + float(full[t])
        for r in again:
            group = group_of.get(program.stages[r].recipe)
            if group is not None:
                pains[group] += program.stages[r].recompute_ps / total
    return {g: pain for g, pain in pains.items() if pain > 0}


def _likeness(graph: Graph, g: int) -> Hashable:
    """What groups have in common that are switched together."""
    group: Group = graph.groups[g]
    return group.kind, tuple(
        (o.name, tuple((graph.recipes[r].op, graph.recipes[r].time_s, graph.recipes[r].trace) for r in o.recipes))
        for o in group.options
    )
