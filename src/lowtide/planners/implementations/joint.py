"""Schedule and implementations together: a choice of options is found, planned, and planned again with other options.

1. The fastest option of every group, if all is kept then.
2. The cut where the plan is fullest, over all choices at once (`bounds/joint_cut.py`): what it chooses is planned
   quickly, like any program; where its replay is too full, there is the next cut; then both cut points in one model.
   Cuts next to the one that proves most are for the bound alone: the fullest cut point need not be the most telling
   one.
3. Where some options give other bits, all that is here first without them, as if there were no others; with half as
   much work again what they offer is looked for from there, so that more freedom does not end slower.
4. The choice of which least is proved, and the one with the best plan, are planned thoroughly.
5. In the best plan, with everything else as it is: other options for all groups that are alike, and for single ones,
   where the plan is full or recomputes. Then it is annealed once more.

The program's own choice is planned quickly as well, so that there is always a plan to compare with.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from lowtide.ir.graph import Graph
from lowtide.ir.plan import Outcome, Problem
from lowtide.ir.schedule import Run
from lowtide.planners.base import Watch
from lowtide.planners.bounds.classes import ANY_IMPLEMENTATION, CHOSEN_ORDER, PROGRAM_ORDER
from lowtide.planners.bounds.cut_points import CutPoint
from lowtide.planners.bounds.floors import joint_floor
from lowtide.planners.clock import Deadline, OutOfTime
from lowtide.planners.cuts import cut_and_replay
from lowtide.planners.greedy import descend
from lowtide.planners.implementations.candidates import all_candidates
from lowtide.planners.implementations.choice import chosen_options, fixes_choices
from lowtide.planners.implementations.dominance import exact_only
from lowtide.planners.implementations.flips import flips
from lowtide.planners.implementations.joint_search import Deep, JointSearch
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.search import Search
from lowtide.planners.start import begin

_SINGLES = 5  # cuts over all choices, one by one
_SHARES = (0.5, 0.2)  # of the work, for each of the most promising choices
_NEARBY = 8  # more, next to the one that proves most
_EXACT = 0.6  # of what is left of the time, without options that give other bits
_MORE = 0.5  # of the work, beyond that
_REPLAYS = 5  # with smaller budgets, where a choice is planned thoroughly
_POLISHES = 2  # times that other options are tried in the best plan
_PROBES = 60  # each time at most
_IDLE = 5e-4  # as a fraction of the step: what gains less is not repeated


def has_choices(graph: Graph) -> bool:
    """Whether some group has more than one option."""
    return fixes_choices(graph)


def plan_jointly(problem: Problem, watch: Watch | None, solver: str, deep: Deep) -> Outcome:
    """Plans schedule and implementations together; see the module.

    Arguments:
        problem: not refused.
        solver: name of the planner, for the outcome.
        deep: what is done with the best choices.

    Raises:
        KeyboardInterrupt: on Ctrl-C before there is a plan.
    """
    return _conduct(problem, watch, solver, lambda joint: _script(joint, deep))


def first_jointly(problem: Problem, watch: Watch | None, solver: str, smallest: Callable[[Search], object]) -> Outcome:
    """The first plan that is found with some choice: all kept, else greedily, else at the smallest budget."""
    return _conduct(problem, watch, solver, lambda joint: _first(joint, smallest))


def _conduct(problem: Problem, watch: Watch | None, solver: str, script: Callable[[JointSearch], None]) -> Outcome:
    deadline = Deadline(problem.time_limit_s)
    graph = base_order(problem.graph)
    order = PROGRAM_ORDER if graph is problem.graph else CHOSEN_ORDER
    joint = JointSearch(replace(problem, graph=graph), all_candidates(graph), deadline, watch, order)
    _find_floor(joint)
    joint.clock.conduct(lambda: script(joint))
    return _outcome(joint, solver)


def _first(joint: JointSearch, smallest: Callable[[Search], object]) -> None:
    for choice in (joint.settled(joint.core.fastest), {}):
        joint.keep(choice)
    for stage, run in (("greedy", descend), ("smallest", smallest)):
        for candidate in joint.thriftiest():
            if joint.time_ps is None and not joint.impossible:
                candidate.search.run(stage, run)


def _script(joint: JointSearch, deep: Deep) -> None:
    problem = joint.problem
    if problem.start is not None:
        ran = frozenset(s.recipe for s in problem.start.steps if isinstance(s, Run))
        first = joint.candidate(chosen_options(problem.graph, ran))
        if first is not None:
            begin(first.search, problem.start)
    _solve(joint, deep)
    if joint.time_ps is None:
        for found in joint.thriftiest():
            if found.search.smallest_B is None:
                found.search.run("smallest", deep.smallest)


def _find_floor(joint: JointSearch) -> None:
    floor = joint_floor(joint.candidates)
    joint.floor_B, joint.floor_recipes = floor.floor_B, floor.recipes
    joint.impossible = floor.floor_B > joint.problem.budget_B


def _choose(joint: JointSearch) -> None:
    """Cuts over all choices where plans are fullest, first one by one, then several at once."""
    for candidate in list(joint.tried.values()):
        joint.hurry(candidate, climb=not candidate.choice)
        joint.note(candidate, candidate.search.program.keep_all(0))
    for candidate in list(joint.tried.values()):
        if joint.time_ps is None:  # a plan that is soon there, whatever the limit of time
            joint.link(candidate)
    cut = 0
    while cut < min(len(joint.cut_points), _SINGLES) and not joint.is_done and not (joint.impossible or joint.is_late):
        _try(joint, joint.cut_points[cut : cut + 1])
        cut += 1
    for _ in range(_NEARBY):
        nearby = joint.with_best()
        if nearby is None or joint.is_done or joint.impossible or joint.is_late:
            break
        joint.cut([nearby])
    pair = joint.telling_cut_points()
    if not joint.is_done and not (joint.impossible or joint.is_late) and len(pair) > 1:
        _try(joint, pair)


def _try(joint: JointSearch, cut_points: list[CutPoint]) -> bool:
    """Plans what cuts choose; whether that was new."""
    choice = joint.cut(cut_points)
    if choice is None or joint.is_done or joint.impossible:
        return False
    found = joint.quick(choice)
    if found is None:
        return False
    joint.note(found, found.search.program.keep_all(0))
    if found.lowest is not None:
        joint.note(found, found.lowest)
    return True


def _finish_exact(joint: JointSearch, deep: Deep) -> None:
    """Plans among the options that give the same bits, as if there were no others, to go on from what that finds."""
    candidates = exact_only(joint.candidates)
    if joint.is_done or candidates.options == joint.candidates.options:
        return
    smaller = joint.narrowed(candidates, _EXACT)
    _find_floor(smaller)
    try:
        _solve(smaller, deep)
    except OutOfTime:  # of its share
        joint.clock.stats["exact_out_of_time"] = True
    finally:
        joint.take(smaller, _MORE)


def _solve(joint: JointSearch, deep: Deep) -> None:
    """From the choices that come first to the finish."""
    for choice in (joint.settled(joint.core.fastest), {}):
        joint.keep(choice)
    if joint.clock.is_close() or joint.impossible:
        return
    _choose(joint)
    _finish_exact(joint, deep)
    _finish(joint, deep)


def _finish(joint: JointSearch, deep: Deep) -> None:
    """Plans the best choices like any program, then tries other options in the best plan, then goes on from there."""
    work = joint.problem.work - joint.work
    for share, candidate in zip(_SHARES, joint.promising(), strict=False):
        if joint.is_done:
            return
        candidate.grant(joint.clock, int(share * work))
        if candidate.thorough:
            deep.anneal(candidate.search)
            continue
        candidate.thorough = True
        if not candidate.search.clock.is_close():
            candidate.search.run("single_cut", lambda s: cut_and_replay(s, _REPLAYS))
        deep.thoroughly(candidate.search)
    for _ in range(_POLISHES):
        best = joint.best
        if best is None or best.search.time_ps is None or joint.is_done:
            return
        before_ps = best.search.time_ps
        _flip(joint)
        best = joint.best
        assert best is not None
        best.grant(joint.clock, (joint.problem.work - joint.work) // 2)
        deep.anneal(best.search)
        if (best.search.time_ps or 0) > (1.0 - _IDLE) * before_ps:
            return


def _flip(joint: JointSearch) -> None:
    """Other options for groups of the best plan, everything else as it is, as long as that helps."""
    probes = 0
    best = joint.best
    while best is not None and best.search.time_ps is not None:
        schedule = best.search.outcome("").schedule
        for choice in flips(joint.core, best.choice, best.search.program, best.state):
            if probes == _PROBES or joint.is_done:
                return
            probes += 1
            joint.clock.stats["flips"] = joint.clock.stats.get("flips", 0) + 1
            if schedule is not None and joint.probe(choice, schedule, best.search.time_ps):
                break
        else:
            return
        best = joint.best


def _outcome(joint: JointSearch, solver: str) -> Outcome:
    """The best plan, with what is proved for all choices."""
    best = joint.best
    assert best is not None, "the program's own choice is always tried"
    found = best.search.outcome(solver)
    graph = joint.problem.graph
    chosen = {graph.groups[g].name: graph.groups[g].options[k].name for g, k in best.choice.items()}
    stats = found.stats | joint.clock.stats | {"chosen": chosen, "choices_tried": len(joint.tried), "work": joint.work}
    bound_class = f"any recomputation; first runs in {joint.order}; {ANY_IMPLEMENTATION}"
    lowest = _lowest(joint)
    return replace(
        found,
        status=joint.clock.status(impossible=joint.impossible),
        bound_s=joint.clock.proved_s(len(joint.candidates.candidates)),
        bound_class=bound_class,
        floor_B=joint.floor_B,
        floor_class=bound_class,
        floor_recipes=joint.floor_recipes,
        smallest_B=None if lowest is None else lowest.smallest_B,
        smallest=None if lowest is None or found.schedule is not None else lowest.smallest(),
        stats=stats,
    )


def _lowest(joint: JointSearch) -> Search | None:
    """The search that came lowest. Only choices count that are always asked, so that the answer is always the same."""
    asked = [joint.tried[key].search for key in joint.thrifty if key in joint.tried]
    return min((s for s in asked if s.smallest_B is not None), key=lambda s: s.smallest_B or 0, default=None)
