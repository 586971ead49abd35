"""Updates of host-resident values, done there: the gradient is sent, neither weight nor state is copied.

Made from a plan whose updates run on the device: where the parameter and all of its optimizer state are host-resident
and the graph has the same update for the host's engine, that one takes its place. Half of them, and half of the rest,
are tried as well, since the host may be the slower of both. See J. Ren et al., "ZeRO-Offload: Democratizing
Billion-Scale Model Training", USENIX ATC 2021, for why.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from lowtide.ir.graph import Graph, Recipe
from lowtide.ir.housing import housed
from lowtide.ir.plan import Outcome, Problem, Status
from lowtide.ir.schedule import DEVICE, HOST, HOST_ENGINE, Drop, Fetch, Run, Schedule, Send, Step
from lowtide.planners.offload.transfers import measured, timing

_SHARES = (1.0, 0.5, 0.25)  # of the updates, the last of the step first to stay on the device


def update_on_the_host(problem: Problem, outcome: Outcome) -> Outcome:
    """The same plan with updates on the host where that is faster.

    Arguments:
        outcome: of the problem, with a schedule.

    Returns: with a bound that holds for updates in either place. O(updates) schedules are timed.
    """
    plain = outcome.schedule
    if plain is None or problem.machine is None:
        return outcome
    graph = housed(problem.graph, outcome.hosted)
    twins = host_twins(graph)
    if not twins:
        return outcome
    outcome = replace(outcome, bound_s=max(0.0, outcome.bound_s - sum(graph.recipes[r].time_s for r in twins)))
    updates = [r for r in _runs(plain) if r in twins and _may_go(graph, plain, graph.recipes[r])]
    best_s = measured(graph, plain, problem.machine).time_s
    for share in _SHARES if updates else ():
        chosen = {r: twins[r] for r in updates[: max(1, int(share * len(updates)))]}
        schedule = _with_updates(graph, plain, chosen)
        timed = timing(graph, schedule, problem.machine, problem.budget_B, problem.host_budget_B)
        host_B = problem.host_budget_B
        fits = timed.peak_B <= problem.budget_B and (host_B is None or timed.host_peak_B <= host_B)
        if fits and timed.time_s < best_s:
            best_s = timed.time_s
            status = Status.FEASIBLE if outcome.status is Status.OPTIMAL else outcome.status
            stats = outcome.stats | {"host_updates": len(chosen)}
            outcome = replace(outcome, schedule=timed.schedule, status=status, stats=stats)
    return outcome


def all_on_the_host(graph: Graph, schedule: Schedule) -> tuple[Schedule, int]:
    """The schedule with every update on the host that can be there, for the fewest bytes; and how many those are.

    Arguments:
        graph: with its host-resident values.
    """
    twins = host_twins(graph)
    chosen = {r: twins[r] for r in _runs(schedule) if r in twins and _may_go(graph, schedule, graph.recipes[r])}
    return _with_updates(graph, schedule, chosen), len(chosen)


def host_twins(graph: Graph) -> dict[int, int]:
    """Per update of the program the one that does the same on the host. O(recipes)."""
    there = {r.outputs: r.id for r in graph.recipes if r.engine == HOST_ENGINE and r.consumes}
    return {r: there[graph.recipes[r].outputs] for r in graph.program if graph.recipes[r].outputs in there}


def _runs(schedule: Schedule) -> list[int]:
    return [s.recipe for s in schedule.steps if isinstance(s, Run)]


def _may_go(graph: Graph, schedule: Schedule, recipe: Recipe) -> bool:
    """Whether all that it overwrites lives on the host, and what else it reads may stay there once it is sent."""
    kept = {t.value for t in recipe.consumes}
    if any(graph.values[v].memory != HOST for v in kept):
        return False
    given = [v for v in recipe.read_values if v not in kept]
    return all(not graph.values[v].persistent and _is_free(graph, schedule, v, recipe) for v in given)


def _is_free(graph: Graph, schedule: Schedule, value: int, recipe: Recipe) -> bool:
    """Whether a value is never copied, or goes to the host once and comes back once, for this recipe alone."""
    steps = schedule.steps
    moves = [i for i, s in enumerate(steps) if isinstance(s, Send | Fetch) and s.value == value]
    if not moves:
        return True
    if [type(steps[i]) for i in moves] != [Send, Fetch]:
        return False
    readers = (s.recipe for s in steps[moves[1] :] if isinstance(s, Run))
    return {r for r in readers if value in graph.recipes[r].read_values} == {recipe.id}


def _with_updates(graph: Graph, schedule: Schedule, chosen: Mapping[int, int]) -> Schedule:
    """The schedule with some updates on the host: in any order of copies, to be timed."""
    steps = list(schedule.steps)
    for device, host in chosen.items():
        steps = _moved(graph, steps, graph.recipes[device], graph.recipes[host])
    given = {v for r in chosen for v in _gradients(graph.recipes[r])}
    return Schedule((*steps, *(Drop(v, HOST) for v in sorted(given))))


def _gradients(recipe: Recipe) -> tuple[int, ...]:
    kept = {t.value for t in recipe.consumes}
    return tuple(v for v in recipe.read_values if v not in kept)


def _moved(graph: Graph, steps: list[Step], recipe: Recipe, twin: Recipe) -> list[Step]:
    weight, *state = (t.value for t in recipe.consumes)
    gone = {*state, *recipe.outputs}
    at = next(i for i, s in enumerate(steps) if isinstance(s, Run) and s.recipe == recipe.id)
    last = _last_use(graph, steps[:at], weight)
    found: list[Step] = []
    sent = _gradients(recipe)
    already = {s.value for s in steps if isinstance(s, Send)}
    back: set[int] = set()  # gradients that would have come back by now
    for i, step in enumerate(steps):
        if isinstance(step, Fetch) and step.value in sent:
            back.add(step.value)
            continue
        if isinstance(step, Drop) and (step.value in back or (step.value in sent and step.memory == HOST)):
            continue
        if isinstance(step, Send | Fetch | Drop) and step.value in gone:
            continue
        if isinstance(step, Fetch) and step.value == weight and last < i < at:
            continue  # it came for its update alone
        if i == at:
            found += [Send(v, HOST) for v in sent if v not in already]
            found.append(Run(twin.id, recipe.outputs))
            continue
        found.append(step)
        if i == last and _is_there(steps[:at], weight, last):
            found.append(Drop(weight, DEVICE))
    return found


def _last_use(graph: Graph, steps: Collection[Step], value: int) -> int:
    """The last step that reads a value on the device; -1 if none does."""
    reads = (
        i for i, s in enumerate(steps) if isinstance(s, Run) and value in graph.recipes[s.recipe].read_values
    )  # fmt: skip
    return max(reads, default=-1)


def _is_there(steps: list[Step], value: int, last: int) -> bool:
    """Whether a value is still on the device behind its last use: nothing drops it between that and its update."""
    return not any(isinstance(s, Drop) and s.value == value and s.memory == DEVICE for s in steps[last + 1 :])
