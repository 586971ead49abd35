"""plan -> place -> record: a profiled graph becomes a plan with its claims, proved legal. Needs no torch.

Each stage is a function of frozen values; this file composes them and decides nothing that a stage could.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from lowtide.errors import InfeasibleBudget
from lowtide.ir.check import check
from lowtide.ir.graph import Graph, Recipe
from lowtide.ir.layout import ALIGNMENT_B, SMALL_B, Obstacle
from lowtide.ir.machine import Link
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import DEFAULT_WORK, Covers, Environment, Outcome, PlanRecord, Problem, Status
from lowtide.ir.schedule import Schedule
from lowtide.ir.simulate import Timeline, simulate
from lowtide.placers.addresses import lay_out
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.start import STAGE as START
from lowtide.units import Budget, format_B

_EQUAL = 1e-6  # relative; bounds and times are sums in another order
_SHORTER = 4  # times shorter is a search that begins from the plan for a little more
_ROUNDS = 8  # of tightening a plan by what its addresses need beyond the budget


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """How to plan.

    Arguments:
        budget: what the device may use.
        planner: what searches.
        seed, work, time_limit_s: see `Problem`.
        machine: plan for a machine that is not here, by name or file, predicting instead of measuring.
        shape_limit_s: for how long a plan is sought for a shape while there is one of another shape to begin from;
            the operators' seconds are then scaled from that shape's. None measures and searches every shape in full.
        numerics: how far results may be from plain PyTorch's.
        without: kinds of implementations, or families, that are left out; see `lowtide.ops.catalogue.parse_without`.
        host_budget_B: host bytes for what is moved there; 0 for nothing, None for no limit.
        link_Bps: what each direction of the link is held to; None for what it can do.
        links: between device and host, as measured here and limited; empty where nothing is moved, or `machine` has
            them.
    """

    budget: Budget
    planner: AbstractPlanner = field(default_factory=Portfolio)
    seed: int = 0
    work: int = DEFAULT_WORK
    time_limit_s: float | None = None
    machine: str | None = None
    shape_limit_s: float | None = None
    numerics: Numerics = Numerics.EXACT
    without: frozenset[str] = frozenset()
    host_budget_B: int | None = 0
    link_Bps: float | None = None
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Start:
    """A plan for another shape of the same program, or for another budget, to begin from.

    Arguments:
        schedule: of a graph with the same structure (`lowtide.ir.likeness`).
        shapes: for which it was made, for people; empty for the same shapes.
        limit_s: search so long for a better one, None without a limit of its own; the schedule itself, made to fit, is
            there from the beginning.
    """

    schedule: Schedule
    shapes: str = ""
    limit_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a plan finds when it begins, and has to leave room for.

    Arguments:
        outside_B: bytes that live for the whole step and belong to no value of the graph.
        enforced: whether allocations are to be given addresses.
        reserve_B: bytes for tiny blocks, worker threads and the caller's code between the segments.
        optimizer_B: temporary bytes of the optimizer's step.
        obstacles: bytes of the arena that tensors of earlier steps hold.
        ceiling_B: where the arena's part for plans ends; None before there is an arena.
        alignment_B: of every address.
    """

    outside_B: int = 0
    enforced: bool = False
    reserve_B: int = 0
    optimizer_B: int = 0
    obstacles: tuple[Obstacle, ...] = ()
    ceiling_B: int | None = None
    alignment_B: int = ALIGNMENT_B

    def room_B(self, graph: Graph, budget_B: int, wall_B: int) -> int:
        """What the addresses of a plan may take.

        Arguments:
            wall_B: the budget of the arena that there is; a larger one gets a larger arena.
        """
        room_B = budget_B - self.outside_B - graph.persistent_B - self.reserve_B
        if self.ceiling_B is not None and budget_B <= wall_B:
            room_B = min(room_B, self.ceiling_B)
        return max(0, room_B // self.alignment_B * self.alignment_B)

    def fixed_B(self, graph: Graph) -> int:
        """Bytes of every budget that a schedule's live bytes may not take."""
        return self.outside_B + self.obstacles_B + graph.beside_B(self.reserve_B)

    @property
    def obstacles_B(self) -> int:
        """Bytes that tensors of earlier steps hold."""
        return sum(o.size_B for o in self.obstacles)


def make_record(
    graph: Graph,
    options: PlanOptions,
    *,
    ground: Ground,
    covers: Covers,
    environment: Environment,
    device_B: Callable[[], int],
    agreed_B: int | None = None,
    at_least_B: int = 0,
    watch: Watch | None = None,
    start: Start | None = None,
) -> PlanRecord:
    """Plans a profiled graph, gives every allocation an address, and proves the plan legal.

    Where the addresses need more than the budget leaves, the plan is tightened by the excess and made again, so that
    the bytes reserved, holes included, stay within the budget.

    Arguments:
        ground: what the plan has to leave room for.
        environment: in which the graph was profiled.
        device_B: finds out the bytes of the device, for a budget that is a share of them.
        agreed_B: what the budget came to before; None to find out.
        at_least_B: what the budget comes to for larger steps of the same model; they share one budget.
        start: a plan for another shape. Where it leads to none that fits, planning starts over without it.

    Raises:
        InfeasibleBudget: if no plan fits; nothing has been run.
    """
    plain = simulate(graph, keep_all_schedule(graph))
    beside_B = ground.outside_B + ground.obstacles_B
    if agreed_B is None:
        agreed_B = budget_in_B(options.budget, lambda: plain_B(graph, ground), device_B)
    budget_B = max(at_least_B, agreed_B)
    room_B = ground.room_B(graph, budget_B, at_least_B)
    claims = msgspec.structs.replace(
        _claims(graph, ground, budget_B, plain, environment, covers),
        numerics=options.numerics,
        without=tuple(sorted(options.without)),
    )
    live_B = budget_B - ground.fixed_B(graph)

    for begin in (None,) if start is None else (start, None):
        solver = _Solver(graph, options, begin, watch)
        tightening = _Tightening(claims, ground, room_B, solver.solve, options.seed)
        record = tightening.run(live_B)
        if record is not None:
            check(graph, record.schedule, min(record.peak_B, budget_B) - beside_B, record.layout)
            return record if begin is None else msgspec.structs.replace(record, begun_from=begin.shapes)
    raise _infeasible(graph, tightening.last, budget_B, ground, tightening.lowest)


class _Solver:
    """Solves for one number of live bytes after another.

    Each begins from the plan of the one before, and is shorter than the first. Invariant: after an interruption no
    search is longer than the default one, since a plan is still to be placed; and all searches that begin from a plan
    for another shape end together at its limit.
    """

    def __init__(self, graph: Graph, options: PlanOptions, start: Start | None, watch: Watch | None) -> None:
        self.graph, self.options, self.watch = graph, options, watch
        self.hurried = False
        self.winner: str | None = None  # what found the plan that the next search begins from
        self.begin = None if start is None else start.schedule
        self.again = False
        limit_s = None if start is None else start.limit_s
        self.until_s = None if limit_s is None else time.monotonic() + limit_s

    def solve(self, live_B: int) -> Outcome:
        options = self.options
        work = options.work // _SHORTER if self.again else options.work
        work = min(work, DEFAULT_WORK) if self.hurried else work
        problem = Problem(self.graph, live_B, options.seed, work, self._limit_s, self.begin)
        outcome = options.planner.solve(problem, self.watch)
        if self.hurried and outcome.status is Status.FEASIBLE:
            outcome = msgspec.structs.replace(outcome, status=Status.INTERRUPTED)
        self.hurried = self.hurried or outcome.status is Status.INTERRUPTED
        if outcome.schedule is not None:
            self.begin, self.again = outcome.schedule, True
            winner = outcome.stats.get("winner")
            self.winner = winner if winner != START else self.winner or START
            outcome = msgspec.structs.replace(outcome, stats=outcome.stats | {"winner": self.winner})
        return outcome

    @property
    def _limit_s(self) -> float | None:
        if self.until_s is None:
            return self.options.time_limit_s
        left_s = max(0.0, self.until_s - time.monotonic())
        return left_s if self.options.time_limit_s is None else min(left_s, self.options.time_limit_s)


def _at_the_end(outcome: Outcome, graph: Graph, ground: Ground) -> Outcome:
    """Raises the floor to what is there when the optimizer steps: its temporaries beside all that the caller holds."""
    least_B = SMALL_B if ground.enforced else 0  # tiny ones have their place in the reserve
    leaving = (v for v in graph.values if v.leaves is not None and v.held and not v.persistent)
    held_B = sum(v.size_B for v in leaving if v.size_B >= least_B)
    end_B = graph.persistent_B + held_B + ground.optimizer_B
    if end_B <= outcome.floor_B or not ground.optimizer_B:
        return outcome
    return msgspec.structs.replace(outcome, floor_B=end_B, floor_class="any schedule", floor_recipes=())


class _Tightening:
    """Plans, places, and plans anew for fewer bytes by as much as the addresses took too many.

    Arguments:
        claims: the plan without a schedule.
        room_B: what the addresses may take.
        solve: plans for so many live bytes.
    """

    def __init__(
        self, claims: PlanRecord, ground: Ground, room_B: int, solve: Callable[[int], Outcome], seed: int
    ) -> None:
        self.claims, self.ground, self.room_B, self.solve, self.seed = claims, ground, room_B, solve, seed
        self.lowest: PlanRecord | None = None
        self.last = claims.outcome
        self.bound_s: float | None = None  # of the first solve: what is proved for fewer bytes need not hold for these

    def run(self, live_B: int) -> PlanRecord | None:
        """The first plan whose addresses fit; None if there is none, and then `lowest` is how low they came."""
        most_B = live_B
        for _ in range(_ROUNDS):
            self.last = self._solve(live_B)
            if self.last.schedule is None:
                break
            record = self._placed(self.last)
            if self._fits(record):
                return record
            excess_B = record.reserved_B - record.fixed_B - self.room_B
            live_B = min(live_B, record.peak_B - self.ground.outside_B - self.ground.obstacles_B) - excess_B
        if not self.ground.enforced or self.last.smallest_B is None:
            return None
        lowest = self._solve(self.last.smallest_B)  # it has to be placed before anybody is told that it fits
        if lowest.schedule is None:
            return None
        record = self._placed(lowest)
        least_B = record.peak_B - self.ground.outside_B - self.ground.obstacles_B
        fits = least_B <= most_B and self._fits(record)  # tiny tensors need no addresses, but bytes
        self.last = msgspec.structs.replace(self.last, smallest_B=None)
        return record if fits else None

    def _solve(self, live_B: int) -> Outcome:
        outcome = _at_the_end(self.solve(live_B), self.claims.graph, self.ground)
        if self.bound_s is None:
            self.bound_s = outcome.bound_s
        if outcome.bound_s <= self.bound_s * (1.0 + _EQUAL):
            return outcome
        status = Status.FEASIBLE if outcome.status is Status.OPTIMAL else outcome.status
        return msgspec.structs.replace(outcome, bound_s=self.bound_s, status=status)

    def _fits(self, record: PlanRecord) -> bool:
        return record.layout is None or record.layout.height_B <= self.room_B

    def _placed(self, outcome: Outcome) -> PlanRecord:
        record = _with_addresses(self.claims, outcome, self.ground, self.room_B, self.seed)
        if self.lowest is None or record.reserved_B < self.lowest.reserved_B:
            self.lowest = record
        return record


def _claims(
    graph: Graph, ground: Ground, budget_B: int, plain: Timeline, environment: Environment, covers: Covers
) -> PlanRecord:
    """A plan's claims before there is a schedule."""
    return PlanRecord(
        graph=graph,
        schedule=Schedule(()),
        outcome=Outcome(None, Status.UNSOLVED, ""),
        budget_B=budget_B,
        peak_B=0,
        time_s=0.0,
        keep_all_peak_B=plain.peak_B + ground.outside_B,
        keep_all_time_s=plain.time_s,
        outside_B=ground.outside_B,
        budget_kind="enforced" if ground.enforced else "accounted",
        covers=covers,
        environment=environment,
        reserve_B=ground.reserve_B,
        optimizer_B=ground.optimizer_B,
    )


def _with_addresses(claims: PlanRecord, outcome: Outcome, ground: Ground, room_B: int, seed: int) -> PlanRecord:
    """The plan for an outcome, its allocations placed if they are to be."""
    schedule = outcome.schedule
    assert schedule is not None
    timeline = simulate(claims.graph, schedule)
    layout = None
    if ground.enforced:
        layout = lay_out(
            claims.graph,
            schedule,
            obstacles=ground.obstacles,
            after_B=ground.optimizer_B,
            capacity_B=room_B,
            alignment_B=ground.alignment_B,
            seed=seed,
        )
    return msgspec.structs.replace(
        claims,
        schedule=schedule,
        outcome=outcome,
        peak_B=timeline.peak_B + ground.outside_B + ground.obstacles_B,
        time_s=timeline.time_s,
        layout=layout,
    )


def place_around(record: PlanRecord, obstacles: tuple[Obstacle, ...], room_B: int) -> PlanRecord | None:
    """The same schedule at addresses around what is in the way; None if it does not fit below `room_B` so."""
    layout = lay_out(
        record.graph,
        record.schedule,
        obstacles=obstacles,
        after_B=record.optimizer_B,
        capacity_B=room_B,
        alignment_B=ALIGNMENT_B if record.layout is None else record.layout.alignment_B,
    )
    if layout.height_B > room_B:
        return None
    check(record.graph, record.schedule, layout=layout)
    return msgspec.structs.replace(record, layout=layout, peak_B=record.peak_B + sum(o.size_B for o in obstacles))


def budget_in_B(budget: Budget, plain_B: Callable[[], int], device_B: Callable[[], int]) -> int:
    """A budget in bytes, once it is known what the plain step needs, or what the device has."""
    if budget.size_B is not None:
        return budget.size_B
    if budget.of_plain is not None:
        return int(budget.of_plain * plain_B())
    return int((budget.of_device or 0.0) * device_B())


def plain_B(graph: Graph, ground: Ground) -> int:
    """What the step needs when nothing is recomputed; with holes and the optimizer's step where there are addresses."""
    keep_all = keep_all_schedule(graph)
    live_B = simulate(graph, keep_all).peak_B
    if not ground.enforced:
        return live_B + ground.outside_B
    layout = lay_out(graph, keep_all, after_B=ground.optimizer_B)
    placed_B = graph.persistent_B + ground.outside_B + ground.reserve_B + layout.height_B
    return max(placed_B, live_B + ground.fixed_B(graph))  # a planner counts tiny tensors, which have no place


def _whereabouts(recipe: Recipe) -> str:
    """An operator with its place in the user's source, or in the model where no line of the user's led to it."""
    origin = recipe.origin
    place = origin.source or f"module {origin.module}" if origin.source or origin.module else "an unknown line"
    return f"{recipe.op} at {place}" + (f" ({origin.text})" if origin.text else "")


def _infeasible(
    graph: Graph, outcome: Outcome, budget_B: int, ground: Ground, lowest: PlanRecord | None
) -> InfeasibleBudget:
    """The error that says what would fit.

    Arguments:
        lowest: a plan that was found, but whose addresses need more than the budget.
    """
    beside_B = ground.outside_B + ground.obstacles_B + ground.reserve_B
    floor_B = outcome.floor_B + ground.fixed_B(graph)
    found = [] if outcome.smallest_B is None else [outcome.smallest_B + beside_B]
    if lowest is not None:  # with a little to spare: another search need not pack as tightly
        placed_B = lowest.reserved_B + (0 if lowest.layout is None else lowest.layout.height_B // 256)
        live_B = lowest.peak_B - ground.outside_B - ground.obstacles_B + ground.fixed_B(graph)
        found.append(max(placed_B, live_B))
    # A little to spare where addresses are given: the search for that budget need not end at the same plan.
    spare_B = max(0, min(found, default=0) - graph.persistent_B) // 256 if ground.enforced else 0
    smallest_B = min(found) + spare_B if found else None
    setters = [graph.recipes[r] for r in outcome.floor_recipes]
    names = tuple(_whereabouts(r) for r in setters[:3])
    lines = [
        f"a budget of {format_B(budget_B)} ({budget_B:,} B) is too small for this step; nothing has been changed.",
        f"Proved floor ({outcome.floor_class}): {format_B(floor_B)} ({floor_B:,} B), of which parameters, buffers, "
        f"inputs and optimizer state are {format_B(graph.persistent_B + ground.outside_B)}.",
    ]
    if ground.obstacles:
        lines.append(
            f"Tensors of earlier steps hold {format_B(ground.obstacles_B)} of it: gradients that were not zeroed, "
            "outputs that a variable still names, what a forward keeps until its backward has run. Set them to None, "
            "or run each backward, before the next step."
        )
    if ground.enforced:
        lines.append(
            f"Beside the plan, {format_B(ground.reserve_B)} are set aside for tiny tensors and code between the "
            f"segments, and the optimizer's step needs {format_B(ground.optimizer_B)}."
        )
    if smallest_B is not None:
        lines.append(f"Smallest budget for which a plan was found: {format_B(smallest_B)}; use budget={smallest_B}.")
    if names:
        lines.append("The floor is set by: " + "; ".join(names) + ".")
    if smallest_B is None and budget_B >= floor_B:
        lines.append(
            "The search ended before it found a plan, or what the least is: allow more time or work, or more bytes."
        )
    elif smallest_B is None:
        lines.append("Raise the budget above the floor, or lower the batch size or the sequence length.")
    return InfeasibleBudget(
        "\n".join(lines), budget_B=budget_B, floor_B=floor_B, smallest_B=smallest_B, operators=names
    )
