"""The least time at every budget, as data: the plan at each, the proved bound, and what other methods reach.

Units: `_B` bytes, `_s` seconds; overheads and gaps are fractions.
"""

from __future__ import annotations

import itertools
import math

import msgspec

from lowtide.ir.plan import Covers, Environment, Status

_MOST = 2**63
_EQUAL = 1e-6  # relative; bounds and times are sums in another order


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One budget, with the fastest plan known for it.

    Arguments:
        budget_B: in the terms of `lowtide.fit`'s `budget=`: everything that it counts is in it.
        status: name of a `Status`.
        bound_s: no schedule of the bound's class within the budget is faster; 0 where nothing was proved.
        bound_overhead: the least overhead that the bound leaves possible.
        reserved_B: what the plan takes of the budget, holes included where it has addresses; None where there is no
            plan, like all that follow.
        time_s, overhead: predicted seconds of one step, and over keeping everything.
        gap: `time_s / bound_s - 1`; None without a bound, too.
        winner: which stage of the planner, or which other method, found the plan; or whose it is, shrunk.
        reason: why there is no plan; empty where there is one.
    """

    budget_B: int
    status: str
    bound_s: float = 0.0
    bound_overhead: float = 0.0
    reserved_B: int | None = None
    time_s: float | None = None
    overhead: float | None = None
    gap: float | None = None
    winner: str = ""
    reason: str = ""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What another method reaches, scored by the same simulator.

    Arguments:
        name: of its planner.
        points: its plans, largest budget first; each stands at the bytes that it needs.
        reason: why there is none, or none but keeping everything.
    """

    name: str
    points: tuple[Point, ...] = ()
    reason: str = ""


class FrontierRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Least time over budget, from the floor to keep-all.

    Invariant: points are sorted by budget, largest first, and along them times never fall and bounds never fall: a
    plan serves every larger budget, a bound holds for every smaller one.

    Arguments:
        name, key: of the graph.
        floor_B: no schedule of `floor_class` needs less; proved.
        floor_operators: names of what sets the floor.
        smallest_B: the smallest budget with a plan; None where there is none.
        keep_all_B: the budget that keeping everything needs; `keep_all_s` is its time.
        fixed_B: of every budget, bytes that belong to no value of the graph: parameters that it does not read,
            optimizer state, what is set aside.
        budget_kind: "enforced" where each plan has addresses and its holes count, else "accounted".
        bound_class: of all bounds.
        planner, seed, work: what searched, with which effort at each budget.
        stopped: why points are missing; empty where none are.
        machine: the seconds are predicted for; empty where they were measured, or come with the graph.
        version: of the file format.
    """

    name: str
    key: str
    floor_B: int
    smallest_B: int | None
    keep_all_B: int
    keep_all_s: float
    points: tuple[Point, ...]
    baselines: tuple[Baseline, ...] = ()
    floor_class: str = ""
    floor_operators: tuple[str, ...] = ()
    fixed_B: int = 0
    budget_kind: str = "accounted"
    bound_class: str = ""
    planner: str = ""
    seed: int = 0
    work: int = 0
    stopped: str = ""
    machine: str = ""
    covers: Covers = Covers()
    environment: Environment = Environment()
    version: int = 1

    @property
    def planned(self) -> tuple[Point, ...]:
        """The points that have a plan."""
        return tuple(p for p in self.points if p.time_s is not None)

    def at(self, budget_B: int) -> Point | None:
        """The fastest known plan within a budget; None where there is none. O(points)."""
        return next((p for p in self.planned if (p.reserved_B or 0) <= budget_B), None)


def disorder(record: FrontierRecord) -> str:
    """Says where points break the invariant, or a number cannot be; empty where none does. O(points)."""
    if found := _nonsense(record):
        return found
    for above, below in itertools.pairwise(record.points):
        where = f"between {above.budget_B} and {below.budget_B} B"
        if below.budget_B >= above.budget_B:
            return f"budgets do not fall {where}"
        if below.bound_s < above.bound_s:
            return f"a bound does not hold for fewer bytes {where}"
        if below.time_s is not None and (above.time_s is None or below.time_s < above.time_s):
            return f"a plan does not serve more bytes {where}"
    for point in record.planned:
        if point.reserved_B is None or point.reserved_B > point.budget_B:
            return f"the plan for {point.budget_B} B takes more"
        if point.time_s is not None and point.bound_s > point.time_s * (1.0 + _EQUAL):
            return f"the plan for {point.budget_B} B is faster than its bound"
    return ""


def _nonsense(record: FrontierRecord) -> str:
    """Says which number cannot be one of bytes or seconds."""
    points = [*record.points, *(p for b in record.baselines for p in b.points)]
    whole = [record.floor_B, record.smallest_B, record.keep_all_B, record.fixed_B]
    whole += [n for p in points for n in (p.budget_B, p.reserved_B)]
    seconds = [record.keep_all_s, *(n for p in points for n in (p.bound_s, p.time_s))]
    shares = [n for p in points for n in (p.bound_overhead, p.overhead, p.gap)]
    if record.keep_all_B < 1:
        return "keeping everything takes no byte"
    for size_B in whole:
        if size_B is not None and not 0 <= size_B < _MOST:
            return f"{size_B} B cannot be"
    for time_s in seconds:
        if time_s is not None and not (math.isfinite(time_s) and time_s >= 0):
            return f"{time_s} s cannot be"
    for share in shares:
        if share is not None and not math.isfinite(share):
            return f"{share} is no overhead or gap"
    for point in points:
        if point.status not in Status.__members__:
            return f"there is no status {point.status!r}"
    return ""
