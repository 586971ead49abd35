"""Plans over the device's memory and the host's: what is kept, recomputed, offloaded or host-resident.

0. A plan that was given and offloads something is made to fit, and bettered; then that is all.
1. The best plan that offloads nothing, where there is one.
2. A cut where the step is fullest says what is kept there, what is sent before and fetched afterwards, which persistent
   values are host-resident (`bounds/offload_cut.py`), and proves a bound. Its solution is replayed; only what it
   offloads may be offloaded in the search that follows, at no price. Where copies turn out to come late, the cut is
   solved again for slower links, and where the replay is fuller elsewhere, there.
3. In graphs too large for that, and where no plan was found: what pays best is dropped, with a price for what is
   offloaded; or everything that may be offloaded is away whenever it is not used, as far as bytes need it.
4. The best plan is annealed where everything may be offloaded, at prices for a second of the link.
5. What waits in it is changed, value by value, by exact time.
6. What offloads nothing, and what runs nothing twice, has all of the work to itself where a bound does not say that it
   loses: a choice of both is then no slower than either alone.

Every plan is timed exactly (`reductions/transfers.py`), and the fastest is taken.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from lowtide._core import Greedy
from lowtide.errors import PlanError
from lowtide.ir.graph import Graph
from lowtide.ir.housing import housed, movable_values
from lowtide.ir.plan import Outcome, Problem
from lowtide.ir.schedule import HOST_ENGINE, Fetch, Run, Send
from lowtide.planners.base import Watch
from lowtide.planners.bounds.classes import (
    ANY_IMPLEMENTATION,
    CHOSEN_ORDER,
    OFFLOAD_CLASS,
    OFFLOAD_JOINT_CLASS,
    ONE_IMPLEMENTATION,
    PROGRAM_ORDER,
    offload_class,
)
from lowtide.planners.bounds.cut_model import choice_cut
from lowtide.planners.bounds.cut_points import cut_point_of, end_of
from lowtide.planners.bounds.floors import joint_floor, least_options, op_floor, working_set
from lowtide.planners.clock import Deadline
from lowtide.planners.implementations.candidates import Candidates, all_candidates
from lowtide.planners.implementations.choice import choose, chosen_options, fixes_choices
from lowtide.planners.offload.extremes import copies_least_s, least_away, run_once
from lowtide.planners.offload.host_updates import all_on_the_host
from lowtide.planners.offload.movement import fetchable_values
from lowtide.planners.offload.offload_cuts import anneal_candidate, cut_and_move, effort_for, prove
from lowtide.planners.offload.offload_search import CLOSE, OffloadCandidate, OffloadSearch
from lowtide.planners.offload.polish import polish
from lowtide.planners.offload.transfers import Timing
from lowtide.planners.offload.waits import with_waits
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.stages import refuses_stages, stage_program
from lowtide.planners.start import read_back

Plain = Callable[[Problem, Watch | None], Outcome]

_SHARE = 0.4  # of work and time, for the plan that offloads nothing
_LARGE = 6000  # stages: cuts of larger graphs take longer than they are worth
_PRICED = ((1.0, 1.0), (0.4, 1.0), (1.0, 0.93), (1.0, 0.85), (1.0, 0.75))
"""Prices of a second of the link, in seconds of compute, for annealing, and shares of the budget for values."""
_FAR = 0.03  # from the bound: so far from it, what costs little is tried as well
_HOST_RESIDENT = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the bytes that may be host-resident
_PRICES = (0.5, 2.0)  # of a second of the link, in seconds of compute
_WAITS = 0.02  # of the step: more waiting than that asks for the higher price
_CANDIDATES, _SLICE = 6, 32  # values examined exactly per drop, and drops between two looks at the clock


def plan_offload(problem: Problem, watch: Watch | None, solver: str, plain: Plain) -> Outcome:
    """Plans over two memories; see the module.

    Arguments:
        problem: that may offload, and is not refused.
        solver: name of the planner, for the outcome.
        plain: plans without offloading anything.

    Raises:
        KeyboardInterrupt: on Ctrl-C before there is a plan.
    """
    assert problem.machine is not None
    deadline = Deadline(problem.time_limit_s)
    graph = housed(problem.graph, ())
    graph = graph if len(graph.program) > _LARGE else base_order(graph)
    order = PROGRAM_ORDER if graph.program == problem.graph.program else CHOSEN_ORDER
    candidates = ANY_IMPLEMENTATION if fixes_choices(graph) else ONE_IMPLEMENTATION
    bound_class = f"{offload_class(problem.machine)}; first runs in {order}; {candidates}"
    pool = OffloadSearch(replace(problem, graph=graph), deadline, watch, bound_class)
    pool.clock.conduct(lambda: _script(pool, plain))
    return _outcome(pool, solver)


def _script(pool: OffloadSearch, plain: Plain) -> None:
    graph, problem = pool.graph, pool.problem
    candidates = all_candidates(graph) if fixes_choices(graph) else None
    pool.clock.prove(pool.still.time_ps - len(pool.still.stages) if candidates is None else candidates.least_ps)
    is_small = len(graph.program) <= _LARGE
    floor = working_set(graph, persistent_may_move=True, candidates=candidates)
    impossible = candidates is None and floor.floor_B > problem.budget_B
    pool.stats["floor"] = floor
    if not impossible and problem.start is not None and pool.clock.run("start", lambda: _begin(pool)):
        if is_small and not pool.clock.is_close():
            pool.clock.run("cut", lambda: prove(pool))
        if not pool.clock.is_close():
            pool.clock.run("polish", lambda: polish(pool))
        return
    if not impossible:
        floor_B = op_floor(pool.still).floor_B if candidates is None else joint_floor(candidates).floor_B
        still_fits = floor_B <= problem.budget_B and not problem.host_resident
        if still_fits:
            pool.clock.run("plain", lambda: _plain(pool, plain, _SHARE))
        graphs = _choices(pool)
        if candidates is not None and not pool.clock.is_close() and is_small:
            graphs = pool.clock.run("joint_cut", partial(_with_choice, pool, candidates, graphs))
        for chosen in graphs:
            if not pool.clock.is_close():
                _move(pool, chosen)
        for chosen in _frugal(graph, candidates) if pool.best is None else ():
            _move(pool, chosen)
        if pool.best is not None and not pool.clock.is_close() and is_small:
            pool.clock.run("prices", lambda: _at_prices(pool))
        if pool.best is not None and pool.best.candidate is not None and not pool.clock.is_close():
            pool.clock.run("polish", lambda: polish(pool))
        if still_fits and not pool.clock.is_close() and _may_win_without_offload(pool):
            pool.clock.run("plain", lambda: _plain(pool, plain, 1.0))
        if pool.best is not None and not pool.clock.is_close() and not problem.host_resident and is_small:
            pool.clock.run("once", lambda: _once(pool, plain))
    if pool.best is None:
        for chosen in (graph, *_frugal(graph, candidates)):
            pool.clock.run("smallest", partial(_smallest, pool, chosen))


def _frugal(graph: Graph, candidates: Candidates | None) -> tuple[Graph, ...]:
    """The graph with the options that need the fewest bytes where everything is away; none where it has those."""
    choice = {} if candidates is None else least_options(candidates, persistent_may_move=True)
    try:
        return (choose(graph, choice),) if choice else ()
    except PlanError:  # what they read goes round in a circle
        return ()


def _smallest(pool: OffloadSearch, graph: Graph) -> None:
    """The plan for the fewest bytes: everything is away whenever it is not used."""
    candidate = pool.candidate(graph, movable_values(graph), fetchable_values(graph, pool.least_B))
    _everything_away(pool, candidate)
    if pool.best is None:
        _updates_away(pool, candidate)


def _begin(pool: OffloadSearch) -> bool:
    """Makes the plan that was given, which offloads something, fit, and anneals it; whether that led to a plan."""
    graph, start = pool.graph, pool.problem.start
    assert start is not None
    fetched = {s.value for s in start.steps if isinstance(s, Fetch)}
    sent = {s.value for s in start.steps if isinstance(s, Send)}
    if not fetched | sent:
        return False
    ran = frozenset(s.recipe for s in start.steps if isinstance(s, Run))
    chosen = choose(graph, chosen_options(graph, ran)) if fixes_choices(graph) else graph
    away = fetched | {old for v in sent for old in (graph.values[v].replaces,) if old is not None}
    away |= {v for r in ran if graph.recipes[r].engine == HOST_ENGINE for v in graph.recipes[r].read_values}
    hosted = away.intersection(movable_values(graph))
    candidate = pool.candidate(chosen, hosted, fetchable_values(graph, pool.least_B) | fetched)
    candidate.price(pool.machine, _PRICED[0][0])
    state = pool.settle(candidate, read_back(candidate.program, start))
    if state is not None and pool.consider(candidate, state) is not None and not pool.clock.is_close():
        anneal_candidate(pool, candidate, state.taus)
    return pool.best is not None


def _may_win_without_offload(pool: OffloadSearch) -> bool:
    """Whether more work on the plan that offloads nothing may end at a faster one than those that offload something."""
    bound_s = pool.stats.get("plain_bound_s")
    return pool.best is None or (bound_s is not None and bound_s < pool.best.timing.time_s)


def _plain(pool: OffloadSearch, plain: Plain, share: float) -> None:
    """The best plan that offloads nothing, for a share of the work."""
    problem = pool.problem
    if len(problem.graph.program) > _LARGE:
        state = pool.still.keep_all(problem.budget_B - pool.still.reserve_B)
        if state.fits:
            pool.offer_plain(pool.still.lift(state))
        return
    limit_s = None if pool.clock.left_s is None else share * pool.clock.left_s
    work = int(share * problem.work)
    asked = replace(problem, machine=None, host_budget_B=0, work=work, time_limit_s=limit_s)
    outcome = plain(asked, pool.tell)
    pool.work += int(outcome.stats.get("work", 0))
    pool.stats["plain_bound_s"] = outcome.bound_s
    if outcome.schedule is not None:
        pool.offer_plain(outcome.schedule)
        time_s = sum(pool.graph.recipes[s.recipe].time_s for s in outcome.schedule.steps if isinstance(s, Run))
        pool.stats["plain_time_s"] = min(time_s, pool.stats.get("plain_time_s", time_s))
    elif outcome.smallest_B is not None and outcome.smallest is not None:
        pool.lowest_B, pool.lowest = outcome.smallest_B, (outcome.smallest, ())


def _once(pool: OffloadSearch, plain: Plain) -> None:
    """The best plan that runs nothing twice, where copies alone are quick enough for it to be the fastest."""
    best = pool.best
    assert best is not None
    graph = run_once(_choices(pool)[0] if best.candidate is None else housed(best.candidate.program.graph, ()))
    if graph.recipes == pool.graph.recipes or refuses_stages(graph, offload=True) is not None:
        return
    if copies_least_s(graph, pool.problem.budget_B, pool.machine) >= best.timing.time_s:
        return
    asked = replace(pool.problem, graph=graph, start=None, time_limit_s=pool.clock.left_s)
    outcome = plan_offload(asked, pool.tell, "", plain)
    pool.work += int(outcome.stats.get("work", 0))
    if outcome.schedule is not None:
        pool.offer(outcome.schedule, outcome.hosted)


def _choices(pool: OffloadSearch) -> list[Graph]:
    """The program of the best plan so far, and the graph's own."""
    graphs = [pool.graph]
    if pool.best is not None and fixes_choices(pool.graph):
        ran = frozenset(s.recipe for s in pool.best.timing.schedule.steps if isinstance(s, Run))
        chosen = choose(pool.graph, chosen_options(pool.graph, ran))
        if chosen.program != pool.graph.program:
            graphs.insert(0, chosen)
    return graphs


def _with_choice(pool: OffloadSearch, candidates: Candidates, graphs: list[Graph]) -> list[Graph]:
    """Proves a bound for all choices where the first program is fullest; what is chosen there goes first."""
    program = stage_program(graphs[0])
    stage = program.stages[program.keep_all(0).peak_stage]
    cut_point = cut_point_of(candidates, stage.recipe) if stage.recipe >= 0 else end_of(candidates, stage.segment)
    cut = choice_cut(candidates, (cut_point,), pool.problem.budget_B, pool.machine)
    solution = cut.solve(pool.problem.budget_B, effort_for(pool, program))
    pool.clock.prove(max(0.0, solution.bound_ps - len(candidates.candidates)))
    if solution.kept is None:
        return graphs
    try:
        chosen = choose(pool.graph, solution.choice)
    except PlanError:  # what it chooses goes round in a circle
        return graphs
    return graphs if any(chosen.program == g.program for g in graphs) else [chosen, *graphs]


def _move(pool: OffloadSearch, graph: Graph) -> None:
    """Everything that offloads something, for one choice of options."""
    if len(graph.program) <= _LARGE and refuses_stages(graph) is None:
        cut_and_move(pool, graph, pool.still if graph is pool.graph else stage_program(graph))
    if pool.clock.gap > (_FAR if len(graph.program) <= _LARGE else CLOSE):
        pool.clock.run("away", lambda: _away(pool, graph))


# prices


def _at_prices(pool: OffloadSearch) -> None:
    """Anneals the best plan where everything may be offloaded, at prices for a second of the link.

    Where compute waits for long, some of the budget is left for copies in progress.
    """
    for price, budget_share in _PRICED:
        best = pool.best
        if best is None or pool.clock.is_close():
            return
        if budget_share < 1.0 and best.timing.stall_s < _WAITS * best.timing.time_s:
            return
        graph = _choices(pool)[0] if best.candidate is None else best.candidate.program.graph
        movable = fetchable_values(graph, pool.least_B)
        if best.candidate is None:
            candidate = pool.candidate(graph, (), movable)
            retention = read_back(candidate.program, best.timing.schedule)
        else:
            candidate = pool.redraft(graph, best.hosted, movable | best.candidate.program.movement.fetchable)
            assert best.retention is not None
            retention = best.retention
        candidate.price(pool.machine, price)
        anneal_candidate(pool, candidate, retention, budget_share)
        pool.clock.tick()


# without cuts


def _away(pool: OffloadSearch, graph: Graph) -> None:
    """Values host-resident as far as bytes need it; what pays best is dropped where bytes are short, or everything."""
    movable = sorted(movable_values(graph), key=lambda v: (-graph.values[v].size_B, v))
    total_B = sum(graph.values[v].size_B for v in movable)
    for share in _HOST_RESIDENT if movable else (0.0,):
        hosted, left_B = list[int](), share * total_B
        for v in movable:
            if left_B > 0:
                hosted.append(v)
                left_B -= graph.values[v].size_B
        hosted = hosted if pool.problem.host_resident is None else list(pool.problem.host_resident)
        if working_set(housed(graph, hosted)).floor_B > pool.problem.budget_B:
            continue
        candidate = pool.candidate(graph, hosted, fetchable_values(graph, pool.least_B))
        for price in _PRICES:
            timed = _descend(pool, candidate, price)
            if timed is None or timed.stall_s <= _WAITS * timed.time_s:
                break
        if pool.best is None:
            _everything_away(pool, candidate)
            pool.clock.tick()
        if pool.best is not None and pool.best.candidate is not None:
            return


def _descend(pool: OffloadSearch, candidate: OffloadCandidate, price: float) -> Timing | None:
    """Drops what pays best until bytes suffice, to be recomputed or fetched."""
    candidate.price(pool.machine, price)
    state = candidate.program.keep_all(pool.problem.budget_B - candidate.program.reserve_B)
    kernel = Greedy(state, _CANDIDATES)
    while not kernel.run(_SLICE):
        pool.clock.tick()
    pool.work += kernel.tried
    found = pool.settle(candidate, state.taus) if state.fits else None
    return None if found is None else pool.consider(candidate, found)


def _everything_away(pool: OffloadSearch, candidate: OffloadCandidate) -> None:
    candidate.price(pool.machine, _PRICES[0])
    state = pool.settle(candidate, least_away(candidate.program))
    if state is not None:
        pool.consider(candidate, state)


def _updates_away(pool: OffloadSearch, candidate: OffloadCandidate) -> None:
    """Remembers the plan in which everything is away and updated there, if none needs fewer bytes."""
    program = candidate.program
    state = program.keep_all(0)
    if not state.assign(least_away(program)):
        return
    schedule, updates = all_on_the_host(program.graph, program.lift(state))
    if updates and pool.note(with_waits(program.graph, schedule.steps), candidate.hosted, program.graph):
        pool.stats["host_updates"] = updates


# the result


def _outcome(pool: OffloadSearch, solver: str) -> Outcome:
    floor = pool.stats.pop("floor", None)
    best, problem = pool.best, pool.problem
    stats = pool.stats | {"work": pool.work, "elapsed_s": pool.clock.elapsed_s}
    if best is not None:
        timed = best.timing
        stats |= {
            "winner": best.by,
            "peak_B": timed.peak_B,
            "host_peak_B": timed.host_peak_B,
            "sent_B": timed.sent_B,
            "fetched_B": timed.fetched_B,
            "stall_predicted_s": timed.stall_s,
        }
    floor_B = 0 if floor is None else floor.floor_B
    lowest = pool.lowest if best is None else None
    impossible = best is None and not fixes_choices(problem.graph) and floor_B > problem.budget_B
    return Outcome(
        None if best is None else best.timing.schedule,
        pool.clock.status(impossible=impossible),
        solver,
        bound_s=pool.clock.proved_s(),
        bound_class=pool.bound_class,
        floor_B=floor_B,
        floor_class=OFFLOAD_JOINT_CLASS if fixes_choices(problem.graph) else OFFLOAD_CLASS,
        floor_recipes=() if floor is None else floor.recipes,
        smallest_B=pool.lowest_B,
        smallest=None if lowest is None else lowest[0],
        hosted=best.hosted if best is not None else () if lowest is None else lowest[1],
        stats=stats,
    )
