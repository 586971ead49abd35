"""plan -> place -> record: a profiled graph becomes a plan with its claims, proved legal. Needs no torch.

Each stage is a function of frozen values; this file composes them and decides nothing that a stage could.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from lowtide.constraints import Constraints as Constraints
from lowtide.constraints import PlanOptions as PlanOptions
from lowtide.constraints import PlanRequest as PlanRequest
from lowtide.constraints import Start as Start
from lowtide.errors import IllegalPlan, InfeasibleBudget, PlanError, PlanMismatch
from lowtide.ir.check import check
from lowtide.ir.compiled_names import said_of
from lowtide.ir.graph import Graph, Recipe
from lowtide.ir.housing import housed
from lowtide.ir.keep_all import keep_all_schedule
from lowtide.ir.layout import ALIGNMENT_B, LiveBlock
from lowtide.ir.plan import Covers, Environment, Outcome, PlanRecord, Status
from lowtide.ir.same_program import SameProgram, same_program
from lowtide.ir.schedule import HOST, Schedule
from lowtide.ir.simulate import Timeline, simulate
from lowtide.placers.addresses import at_known_places, lay_out
from lowtide.planners.base import Watch
from lowtide.tightening import Solver, Tightening, carried_out, smallest_for_B
from lowtide.units import format_B

_EQUAL = 1e-6  # relative; a bound that is as good as the first runs alone


def make_record(
    request: PlanRequest,
    *,
    watch: Watch | None = None,
    start: Start | None = None,
    known: PlanRecord | None = None,
) -> PlanRecord:
    """Plans a profiled graph, gives every allocation an address, and proves the plan legal.

    Where the addresses need more than the budget leaves, the plan is sought anew for fewer bytes, so that
    the bytes reserved, holes included, stay within the budget.

    Arguments:
        start: a plan for another shape. Where it leads to none that fits, planning starts over without it.
        known: the plan of this graph that showed what budget is the smallest; taken where only it fits.

    Raises:
        InfeasibleBudget: if no plan fits; nothing has been run. Its `proof` is the plan for the budget that it names:
            known, or found without a look at this budget, so that whoever asks again with that one is given a plan.
    """
    graph, options, constraints = request.graph, request.options, request.constraints
    plain = simulate(graph, keep_all_schedule(graph))
    outside_B = constraints.outside_B + constraints.live_blocks_B
    budget_B = budget_in_B(request)
    free_B = constraints.free_B(graph, budget_B, request.at_least_B)
    claims = msgspec.structs.replace(
        _claims(graph, constraints, budget_B, plain, request.environment, request.covers),
        numerics=options.numerics,
        without=tuple(sorted(options.without)),
        host_budget_B=options.host_budget_B,
        link_Bps=options.link_Bps,
        links=() if options.moves is None else options.links,
    )
    live_B = budget_B - constraints.fixed_B(graph)

    still = None
    if options.moves is not None and not options.host_resident:
        still = Solver(graph, replace(options, host_budget_B=0), None, watch).solve
    for begin in (None,) if start is None else (start, None):
        solver = Solver(graph, options, begin, watch)
        tightening = Tightening(claims, constraints, free_B, solver.solve, options.seed, still)
        record = tightening.run(live_B)
        if record is not None:
            break
    else:
        anew = Solver(graph, options, None, watch)
        anew.hurried = solver.hurried
        least = tightening.least(known, anew.solve)
        record = least if least is not None and tightening.fits(least) else None
        if record is None:
            beyond = _beyond_the_host(graph, options, anew.hurried)
            raise _infeasible(
                graph, tightening.last, budget_B, constraints, least or tightening.lowest, options, beyond
            )
    free_B = min(record.peak_B, budget_B) - outside_B
    check(record.graph, record.schedule, free_B, record.layout, options.host_budget_B if record.links else None)
    return record if begin is None else msgspec.structs.replace(record, begun_from=begin.shapes)


def carried_over(
    saved: PlanRecord,
    graph: Graph,
    *,
    constraints: Constraints,
    budget_B: int,
    covers: Covers,
    environment: Environment,
    any_numbers: bool = False,
) -> PlanRecord:
    """A saved plan as a plan of a graph that was captured here: its decisions, and nothing else of what would be run.

    The schedule, what is host-resident and the addresses are taken over; operators, arguments, sizes, allocations and
    seconds are those of the graph here, and what the plan takes is worked out anew. What the saved plan says of its
    search (status, bound, floor) is repeated, where both graphs are alike in what it depends on.

    Arguments:
        saved: from anywhere, its graph well-formed.
        graph: profiled, with every implementation that may be used here.
        constraints: what the plan has to leave free.
        budget_B: what it may take.
        covers, environment: of plans made here.
        any_numbers: whether numbers among the arguments of operators may differ.

    Returns: a legal plan; without addresses where none are wanted, or where those of the saved plan do not suit the
        allocations here.

    Raises:
        PlanMismatch: if it is of another program, or its decisions are not legal for this one.
    """
    alike = same_program(saved.graph, graph, any_numbers=any_numbers)
    schedule, hosted = alike.schedule(saved.schedule, saved.graph), alike.here(saved.outcome.hosted)
    try:
        check(housed(graph, hosted), schedule)
    except PlanError as error:
        raise PlanMismatch(
            f"the saved plan cannot be carried out on this program: {error}. Plan again with lowtide.plan."
        ) from error
    plain = simulate(graph, keep_all_schedule(graph))
    claims = msgspec.structs.replace(
        _claims(graph, constraints, budget_B, plain, environment, covers),
        begun_from=saved.begun_from,
        numerics=saved.numerics,
        without=saved.without,
        host_budget_B=saved.host_budget_B,
        link_Bps=saved.link_Bps,
        links=saved.links,
    )
    outcome = msgspec.structs.replace(
        saved.outcome,
        schedule=schedule,
        hosted=hosted,
        smallest=None,
        bound_s=_bound_s(saved, graph, alike, plain.time_s),
        floor_recipes=tuple(alike.recipes[r] for r in saved.outcome.floor_recipes if r in alike.recipes),
    )
    if not _allocates_alike(saved.graph, graph, alike):
        outcome = msgspec.structs.replace(outcome, floor_B=0, floor_recipes=(), smallest_B=None)
    record = carried_out(claims, outcome, constraints)
    if not constraints.enforced or saved.layout is None:
        return record
    layout = at_known_places(
        record.graph, schedule, saved.layout, after_B=constraints.optimizer_B, alignment_B=constraints.alignment_B
    )
    if layout is None:
        return record
    try:
        check(record.graph, schedule, layout=layout)
    except IllegalPlan:  # bytes pass from one engine to another too early for the order of this schedule
        return record
    return msgspec.structs.replace(record, layout=layout)


def _allocates_alike(there: Graph, here: Graph, alike: SameProgram) -> bool:
    """Whether both graphs have the same recipes, with the same allocations: what is proved for one holds for both."""
    return alike.is_whole and all(r.trace == here.recipes[alike.recipes[r.id]].trace for r in there.recipes)


def _bound_s(saved: PlanRecord, graph: Graph, alike: SameProgram, keep_all_s: float) -> float:
    """A saved plan's bound for other seconds; 0, which is none, where there are other recipes than it was proved for.

    First runs take what they take, recomputations shrink with the recipe that shrank most.
    """
    if not alike.is_whole:
        return 0.0
    pairs = [(r.time_s, graph.recipes[alike.recipes[r.id]].time_s) for r in saved.graph.recipes]
    bound_s, first_s = saved.outcome.bound_s, saved.keep_all_time_s
    if all(there_s == here_s for there_s, here_s in pairs):
        return bound_s
    least = min((here_s / there_s for there_s, here_s in pairs if there_s > 0), default=0.0)
    if bound_s < first_s * (1.0 - _EQUAL):
        return least * bound_s
    return keep_all_s * (1.0 - _EQUAL) + least * max(0.0, bound_s - first_s)


def _claims(
    graph: Graph, constraints: Constraints, budget_B: int, plain: Timeline, environment: Environment, covers: Covers
) -> PlanRecord:
    """A plan's claims before there is a schedule."""
    return PlanRecord(
        graph=graph,
        schedule=Schedule(()),
        outcome=Outcome(None, Status.UNSOLVED, ""),
        budget_B=budget_B,
        peak_B=0,
        time_s=0.0,
        keep_all_peak_B=plain.peak_B + constraints.outside_B,
        keep_all_time_s=plain.time_s,
        outside_B=constraints.outside_B,
        budget_kind="enforced" if constraints.enforced else "accounted",
        covers=covers,
        environment=environment,
        reserve_B=constraints.reserve_B,
        optimizer_B=constraints.optimizer_B,
        state_B=constraints.state_B,
        libraries_B=constraints.libraries_B,
    )


def place_around(record: PlanRecord, live_blocks: tuple[LiveBlock, ...], free_B: int) -> PlanRecord | None:
    """The same schedule at addresses around what is in the way; None if it does not fit below `free_B` so."""
    layout = lay_out(
        record.graph,
        record.schedule,
        live_blocks=live_blocks,
        after_B=record.optimizer_B,
        capacity_B=free_B,
        alignment_B=ALIGNMENT_B if record.layout is None else record.layout.alignment_B,
    )
    if layout.height_B > free_B:
        return None
    check(record.graph, record.schedule, layout=layout)
    return msgspec.structs.replace(record, layout=layout, peak_B=record.peak_B + sum(o.size_B for o in live_blocks))


def budget_in_B(request: PlanRequest) -> int:
    """What the budget of a request comes to."""
    agreed_B = request.agreed_B
    if agreed_B is None:
        agreed_B = request.options.budget.in_B(lambda: plain_B(request.graph, request.constraints), request.device_B)
    return max(request.at_least_B, agreed_B)


def plain_B(graph: Graph, constraints: Constraints) -> int:
    """Bytes of the step when nothing is recomputed; with holes and the optimizer's step where there are addresses."""
    keep_all = keep_all_schedule(graph)
    live_B = simulate(graph, keep_all).peak_B
    if not constraints.enforced:
        return live_B + constraints.outside_B
    layout = lay_out(graph, keep_all, after_B=constraints.optimizer_B, alignment_B=constraints.alignment_B)
    placed_B = graph.persistent_B + constraints.outside_B + constraints.reserve_B + layout.height_B
    return max(placed_B, live_B + constraints.fixed_B(graph))  # a planner counts tiny tensors, which have no place


def _beyond_the_host(graph: Graph, options: PlanOptions, hurried: bool) -> tuple[int, int] | None:
    """Least device bytes of a plan with more host memory, and what it needs there; None for no such plan."""
    if options.moves is None or options.host_budget_B is None or hurried:
        return None
    found = Solver(graph, replace(options, host_budget_B=None), None, None).solve(0)
    if found.smallest is None or found.smallest_B is None:
        return None
    host_B = dict(simulate(housed(graph, found.hosted), found.smallest).memory_peaks_B).get(HOST, 0)
    return (found.smallest_B, host_B) if host_B > options.host_budget_B else None


def _whereabouts(recipe: Recipe) -> str:
    """An operator with its place in the user's source, or in the model where no line of the user's led to it."""
    origin = recipe.origin
    place = origin.source or f"module {origin.module}" if origin.source or origin.module else "an unknown line"
    return f"{said_of(recipe.op)} at {place}" + (f" ({origin.text})" if origin.text else "")


def _infeasible(
    graph: Graph,
    outcome: Outcome,
    budget_B: int,
    constraints: Constraints,
    least: PlanRecord | None,
    options: PlanOptions,
    beyond: tuple[int, int] | None,
) -> InfeasibleBudget:
    """The error that says what would fit.

    Arguments:
        least: the plan that shows it.
        beyond: device and host bytes of a plan that needs more of the host than it may have.
    """
    floor_B = outcome.floor_B + constraints.fixed_B(graph)
    smallest_B = None
    if least is not None:
        smallest_B = smallest_for_B(least, constraints)
        least = msgspec.structs.replace(least, budget_B=smallest_B)
    elif outcome.smallest_B is not None and not constraints.enforced:
        smallest_B = outcome.smallest_B + constraints.outside_B + constraints.live_blocks_B
    setters = [graph.recipes[r] for r in outcome.floor_recipes]
    names = tuple(_whereabouts(r) for r in setters[:3])
    lines = [
        f"a budget of {format_B(budget_B)} ({budget_B:,} B) is too small for this step; nothing has been changed.",
        f"Proved floor ({outcome.floor_class}): {format_B(floor_B)} ({floor_B:,} B), of which parameters, buffers, "
        f"inputs and optimizer state are {format_B(graph.persistent_B + constraints.outside_B)}.",
    ]
    if constraints.live_blocks:
        lines.append(
            f"Tensors of earlier steps hold {format_B(constraints.live_blocks_B)} of it: gradients that were not "
            "zeroed, outputs that a variable still names, what a forward keeps until its backward has run. Set them to "
            "None, or run each backward, before the next step."
        )
    if constraints.enforced:
        lines.append(
            f"Outside the plan, {format_B(constraints.reserve_B)} are set aside for tiny tensors and code between the "
            f"segments, and the optimizer's step needs {format_B(constraints.optimizer_B)}."
        )
    if smallest_B is not None:
        lines.append(f"Smallest budget for which a plan was found: {format_B(smallest_B)}; use budget={smallest_B}.")
    host_B = options.host_budget_B
    if options.moves is not None:
        lines.append(_of_the_host(host_B, smallest_B, beyond, constraints))
    if names:
        lines.append("The floor is set by: " + "; ".join(names) + ".")
    if smallest_B is None and budget_B >= floor_B:
        lines.append(
            "The search ended before it found a plan, or what the least is: allow more time or work, or more bytes."
        )
    elif smallest_B is None:
        lines.append("Raise the budget above the floor, or lower the batch size or the sequence length.")
    return InfeasibleBudget(
        "\n".join(lines),
        budget_B=budget_B,
        floor_B=floor_B,
        smallest_B=smallest_B,
        operators=names,
        proof=least,
        host_budget_B=host_B,
    )


def _of_the_host(
    host_B: int | None, smallest_B: int | None, beyond: tuple[int, int] | None, constraints: Constraints
) -> str:
    """Says whether a larger host budget would help."""
    if host_B is None:
        return "The host has no limit: only the device is too small."
    limit = f"The host budget is {format_B(host_B)} ({host_B:,} B)"
    if beyond is None:
        return f"{limit}; more host memory was not found to help."
    device_B = beyond[0] + constraints.outside_B + constraints.live_blocks_B + constraints.reserve_B
    if smallest_B is not None and device_B >= smallest_B:
        return f"{limit}; more host memory was not found to help."
    return (
        f"{limit}, which is too small as well: with host_budget={beyond[1]} a plan was found that needs about "
        f"{format_B(device_B)} of the device."
    )
