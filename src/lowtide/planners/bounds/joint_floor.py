"""Bytes that no schedule of any choice of options can do without.

At every place of the program: what is there whatever is chosen, and the least over the options of what the first
recipe reads and takes by itself; where a segment returns, all that is handed over together. Weaker than `op_floor.py`
is for one choice: what is there for the sake of an option does not count unless every option needs it.

Units: `_B` bytes.
"""

from __future__ import annotations

from lowtide.ir.graph import Value
from lowtide.planners.bounds.op_floor import Floor
from lowtide.planners.implementations.candidates import ALWAYS, Candidates, Owner

_NEAR = 0.99  # of the floor: recipes that set it


def joint_floor(candidates: Candidates) -> Floor:
    """Proves a floor for all choices. O(graph + places * values that cannot be rematerialised)."""
    graph = candidates.graph
    lifetimes = [(v.size_B, v.id, *there) for v in graph.values if (there := _there(candidates, v)) is not None]
    floors_B = []
    for place in range(len(candidates.segment_of)):
        always = {v: size_B for size_B, v, first, last in lifetimes if first <= place < last}
        floors_B.append(graph.persistent_B + sum(always.values()) + _run_B(candidates, place, always))
    ends_B = [_end_B(candidates, segment) for segment in range(len(graph.segments))]
    floor_B = max([*floors_B, *ends_B], default=0)
    setters = sorted((-floor, place) for place, floor in enumerate(floors_B) if floor >= _NEAR * floor_B)
    return Floor(floor_B, tuple(graph.program[place] for _, place in setters[:32]))


def _there(candidates: Candidates, value: Value) -> tuple[int, int] | None:
    """The places from and up to which a value is resident in every schedule.

    None where nothing says so: it may be rematerialised, or nobody may need it.
    """
    makers = candidates.makers.get(value.id, ())
    if value.persistent or (value.arrives is None and not makers):
        return None
    begins = candidates.begins
    needed = [w.earliest + 1 for w in candidates.readers.get(value.id, ()) if w.owner == ALWAYS and w.runs]
    last = max(needed, default=0)
    made = [w.latest + 1 for w in makers]
    if value.arrives is not None:
        made.append(begins[value.arrives])
    first = max(made)
    if value.leaves is not None:
        last = max(last, begins[value.leaves + 1])
        if value.held:
            last = max(last, begins[-1])
            first = max(first, begins[value.leaves + 1]) if any(w.recompute_ps is not None for w in makers) else first
            return first, last
    if any(w.recompute_ps is not None for w in makers):
        return None
    return (first, last) if last > first else None


def _run_B(candidates: Candidates, place: int, always: dict[int, int]) -> int:
    """The least that the first recipe at a place takes, what it reads included."""
    values = candidates.graph.values
    by_owner: dict[Owner, int] = {}
    for candidate in candidates.at.get(place, ()):
        read_B = sum(values[v].size_B for v in candidate.reads if v not in always)
        taken_B = read_B + candidate.least_B if candidate.runs else 0
        by_owner[candidate.owner] = min(taken_B, by_owner.get(candidate.owner, taken_B))
    if ALWAYS in by_owner or not by_owner:
        return by_owner.get(ALWAYS, 0)
    group = next(iter(by_owner))[0]
    return min(by_owner.get((group, k), 0) for k in candidates.options[group])


def _end_B(candidates: Candidates, segment: int) -> int:
    """What is there together when a segment returns."""
    leaving = (v for v in candidates.graph.values if v.leaves is not None and not v.persistent and v.replaces is None)
    there_B = sum(v.size_B for v in leaving if v.leaves == segment or (v.held and (v.leaves or 0) < segment))
    return candidates.graph.persistent_B + there_B
