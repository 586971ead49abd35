"""Schedule and implementations together: a choice of options is found, planned, and planned again with other options.

1. The fastest option of every group, if all is kept then.
2. The cut at the fullest moment, over all choices at once (`bounds/joint_cut.py`): what it chooses is planned like any
   program; where its replay is too full, there is the next cut.
3. From the best of these, other options for all groups that are alike, and for single ones, where the plan is full or
   runs things again.
4. The best few are planned thoroughly.

The program's own choice is always planned as well, so that a choice never costs time.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from lowtide._core import Retention
from lowtide.errors import PlanError
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Outcome, Problem, Status
from lowtide.ir.schedule import Run
from lowtide.planners.base import Progress, Watch
from lowtide.planners.bounds.highs import Effort
from lowtide.planners.bounds.joint_cut import JOINT_CLASS, JointCut
from lowtide.planners.bounds.joint_floor import joint_floor
from lowtide.planners.bounds.moments import Moment, end_of, moment_of
from lowtide.planners.bounds.rows import PS_PER_MS
from lowtide.planners.greedy import descend
from lowtide.planners.keep_all import find_floor, keep_all
from lowtide.planners.reductions.base_order import base_order
from lowtide.planners.reductions.choice import choose, chosen_options
from lowtide.planners.reductions.first_option import fixes_choices
from lowtide.planners.reductions.flips import flips
from lowtide.planners.reductions.stages import EXIT
from lowtide.planners.reductions.ways import Ways, all_ways
from lowtide.planners.search import GAP, OutOfTime, Search
from lowtide.planners.single_cut import cut_and_replay
from lowtide.planners.start import begin

_SINGLES = 5  # cuts over all choices, one by one
_ROUNDS = 4  # several at once
_COLUMNS = 2500  # of such a model
_NODES = 10  # of each one's tree
_CLOSE = 1e-3  # as a fraction of the step
_FLIPS = 24  # other choices planned from the best one
_THOROUGH = 2  # choices that are planned thoroughly
_EQUAL = 1e-6  # relative

Choice = dict[int, int]
Script = Callable[[Search], object]


@dataclass
class Candidate:
    """A choice and the search for its schedule.

    Arguments:
        lowest: the retention with the lowest peak that the quick part came to.
    """

    choice: Choice
    search: Search
    lowest: Retention | None = None

    @property
    def rank(self) -> tuple[float, int]:
        """What sorts better candidates first: the time of the plan; without one, how full it still is."""
        time_ps = self.search.time_ps
        peak_B = 2**62 if self.lowest is None else self.lowest.peak_B
        return (float("inf"), peak_B) if time_ps is None else (time_ps, 0)

    @property
    def state(self) -> Retention | None:
        """Its plan; without one, what came closest."""
        return self.lowest if self.search.taus is None else self.search.retention()


@dataclass
class JointSearch:
    """One solve over all choices.

    Invariant: `tried` has every choice that was planned; `bound_ps` holds for every schedule of every choice.
    """

    problem: Problem  # its first runs in the order of the class
    ways: Ways
    watch: Watch | None
    began_s: float
    order: str
    bound_ps: float = 0.0
    floor_B: int = 0
    floor_recipes: tuple[int, ...] = ()
    impossible: bool = False
    tried: dict[tuple[tuple[int, int], ...], Candidate] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    _work: int = 0

    @property
    def best(self) -> Candidate | None:
        """The candidate with the fastest plan, or the one that came closest to one."""
        return min(self.tried.values(), key=lambda c: c.rank, default=None)

    @property
    def time_ps(self) -> int | None:
        """Of the fastest plan."""
        return None if self.best is None else self.best.search.time_ps

    @property
    def gap(self) -> float:
        """How much slower than the bound the fastest plan may be."""
        if self.time_ps is None:
            return float("inf")
        return max(0.0, self.time_ps / self.bound_ps - 1.0) if self.bound_ps > 0 else 0.0

    @property
    def work(self) -> int:
        """Proposals so far."""
        return sum(c.search.work for c in self.tried.values())

    def tell(self, progress: Progress) -> None:
        """What the search of one choice says, told of all of them."""
        if self.watch is None:
            return
        times = [t for t in (progress.time_s, *(self._times_s())) if t is not None]
        self.watch(
            Progress(
                progress.stage,
                progress.elapsed_s,
                min(times, default=None),
                self.bound_ps * 1e-12,
                self.work,
                self.plain_s,
            )
        )

    @property
    def plain_s(self) -> float:
        """Of the program without a rerun."""
        return sum(self.problem.graph.recipes[r].time_s for r in self.problem.graph.program)

    def _times_s(self) -> Iterator[float]:
        return (c.search.time_ps * 1e-12 for c in self.tried.values() if c.search.time_ps is not None)

    def prove(self, bound_ps: float) -> None:
        """Notes a proved lower bound on the time of any schedule of any choice."""
        self.bound_ps = max(self.bound_ps, bound_ps)

    def candidate(self, choice: Choice) -> Candidate | None:
        """A choice that was not tried yet, its search begun; None if it was, or if it goes round in a circle."""
        key = tuple(sorted((g, k) for g, k in choice.items() if k))
        if key in self.tried:
            return None
        try:
            graph = choose(self.problem.graph, dict(key))
        except PlanError:
            return None
        work = max(0, self.problem.work - self.work)
        problem = replace(self.problem, graph=graph, work=work, start=None)
        found = Candidate(dict(key), Search(problem, self.tell, self.began_s))
        found.search.prove(self.bound_ps)
        self.tried[key] = found
        return found

    def keep(self, choice: Choice) -> Candidate | None:
        """Tries whether everything fits with a choice."""
        found = self.candidate(choice)
        if found is not None:
            found.search.run("keep_all", keep_all)
            found.lowest = found.search.program.keep_all(found.search.budget_B)
        return found

    def quick(self, choice: Choice) -> Candidate | None:
        """Plans a choice with what takes next to no time; None if it was tried before."""
        found = self.keep(choice)
        if found is not None:
            self.hurry(found)
        return found

    def hurry(self, found: Candidate) -> None:
        """The quick part, behind keep-all."""
        search = found.search
        search.run("floor", find_floor)
        if search.time_ps is not None or search.proved_impossible:
            return
        search.run("greedy", descend)
        search.run("single_cut", lambda s: _note(found, cut_and_replay(s, 1)))

    def note(self, candidate: Candidate, state: Retention) -> None:
        """Remembers the moment at which a plan is fullest."""
        moment = _moment(self, candidate, state.peak_stage)
        if moment not in self.moments:
            self.moments.append(moment)

    def cut(self, moments: Sequence[Moment]) -> Choice | None:
        """Proves what cuts over all choices prove; returns what the best solution chooses."""
        model = JointCut(self.ways, moments, self.problem.budget_B)
        if len(moments) > 1 and model.columns > _COLUMNS:
            return None
        close_ms = _CLOSE * self.ways.least_ps / PS_PER_MS
        solution = model.solve(self.problem.budget_B, Effort(close_ms, _NODES, self.left_s))
        self.prove(solution.bound_ps)
        self.impossible = self.impossible or solution.impossible
        self.stats["joint_cuts"] = self.stats.get("joint_cuts", 0) + 1
        return solution.choice

    @property
    def left_s(self) -> float | None:
        """Seconds until the time limit."""
        limit_s = self.problem.time_limit_s
        return None if limit_s is None else limit_s - (time.monotonic() - self.began_s)


def _note(found: Candidate, state: Retention | None) -> None:
    if state is not None and (found.lowest is None or state.peak_B < found.lowest.peak_B):
        found.lowest = state


def has_choices(graph: Graph) -> bool:
    """Whether some group has more than one option."""
    return fixes_choices(graph)


def plan_jointly(problem: Problem, watch: Watch | None, solver: str, thoroughly: Script, smallest: Script) -> Outcome:
    """Plans schedule and implementations together; see the module.

    Arguments:
        problem: not refused.
        solver: name of the planner, for the outcome.
        thoroughly: what is done with the best choices, as with any program.
        smallest: what is done where no plan was found: notes the smallest budget of a choice.

    Raises:
        KeyboardInterrupt: on Ctrl-C before there is a plan.
    """
    began_s = time.monotonic()
    graph = base_order(problem.graph)
    order = "program order" if graph is problem.graph else "the order that was chosen"
    joint = JointSearch(replace(problem, graph=graph), all_ways(graph), watch, began_s, order)
    joint.prove(joint.ways.least_ps)
    interrupted = out_of_time = False
    try:
        _script(joint, thoroughly, smallest)
    except OutOfTime:
        out_of_time = True
    except KeyboardInterrupt:
        if joint.time_ps is None:
            raise
        interrupted = True
    return _outcome(joint, solver, interrupted, out_of_time)


def _script(joint: JointSearch, thoroughly: Script, smallest: Script) -> None:
    ways, problem = joint.ways, joint.problem
    if problem.start is not None:
        ran = frozenset(s.recipe for s in problem.start.steps if isinstance(s, Run))
        first = joint.candidate(chosen_options(problem.graph, ran))
        if first is not None:
            begin(first.search, problem.start)
    for choice in (ways.fastest, {}):
        joint.keep(choice)
    _find_floor(joint)
    if joint.gap <= GAP:
        return
    if not joint.impossible:
        _choose(joint)
        _flip(joint)
        _finish(joint, thoroughly)
    if joint.time_ps is None:
        ranked = sorted(joint.tried.values(), key=lambda c: c.rank)
        for found in ranked[:_THOROUGH]:
            found.search.run("smallest", smallest)


def _find_floor(joint: JointSearch) -> None:
    floor = joint_floor(joint.ways)
    joint.floor_B, joint.floor_recipes = floor.floor_B, floor.recipes
    joint.impossible = floor.floor_B > joint.problem.budget_B


def _choose(joint: JointSearch) -> None:
    """Cuts over all choices where plans are fullest, first one by one, then several at once."""
    for candidate in list(joint.tried.values()):
        joint.hurry(candidate)
        joint.note(candidate, candidate.search.program.keep_all(0))
    cut = 0
    while cut < min(len(joint.moments), _SINGLES) and joint.gap > GAP and not joint.impossible:
        _try(joint, joint.moments[cut : cut + 1])
        cut += 1
    for _ in range(_ROUNDS):
        before_ps, best = joint.bound_ps, joint.best
        if joint.gap <= GAP or joint.impossible or best is None:
            return
        if best.state is not None:
            joint.note(best, best.state)
        if not _try(joint, joint.moments) and joint.bound_ps <= before_ps:
            return


def _try(joint: JointSearch, moments: list[Moment]) -> bool:
    """Plans what cuts choose; whether that was new."""
    choice = joint.cut(moments)
    if choice is None or joint.gap <= GAP or joint.impossible:
        return False
    found = joint.quick(choice)
    if found is None:
        return False
    joint.note(found, found.search.program.keep_all(0))
    if found.lowest is not None:
        joint.note(found, found.lowest)
    return True


def _moment(joint: JointSearch, candidate: Candidate, stage: int) -> Moment:
    """The moment of a stage of a choice's program."""
    found = candidate.search.program.stages[stage]
    if found.recipe >= 0:
        return moment_of(joint.ways, found.recipe)
    if found.recipe == EXIT:
        return end_of(joint.ways, found.segment)
    places = [p for p, s in enumerate(joint.ways.segment_of) if s == found.segment]
    return Moment(found.segment, places[0]) if places else end_of(joint.ways, found.segment)


def _flip(joint: JointSearch) -> None:
    """Other options for groups of the best candidate, as long as that helps."""
    tries = 0
    while tries < _FLIPS and joint.gap > GAP and joint.best is not None:
        best = joint.best
        for choice in flips(joint.ways, best.choice, best.search.program, best.state):
            if tries >= _FLIPS or joint.gap <= GAP:
                break
            tries += joint.quick(choice) is not None
            if joint.best is not best:
                break
        else:
            break
    joint.stats["flips"] = tries


def _finish(joint: JointSearch, thoroughly: Script) -> None:
    """Plans the best choices like any program."""
    ranked = sorted(joint.tried.values(), key=lambda c: c.rank)
    for candidate in ranked[:_THOROUGH]:
        if joint.gap <= GAP or candidate.search.proved_impossible:
            return
        candidate.search.prove(joint.bound_ps)
        thoroughly(candidate.search)


def _outcome(joint: JointSearch, solver: str, interrupted: bool, out_of_time: bool) -> Outcome:
    """The best plan, with what is proved for all choices."""
    best = joint.best
    assert best is not None, "the program's own choice is always tried"
    found = best.search.outcome(solver, interrupted)
    graph = joint.problem.graph
    chosen = {graph.groups[g].name: graph.groups[g].options[k].name for g, k in best.choice.items()}
    stats = found.stats | joint.stats | {"chosen": chosen, "choices_tried": len(joint.tried), "work": joint.work}
    if out_of_time:
        stats["out_of_time"] = True
    bound_class = f"any recomputation; first runs in {joint.order}; {JOINT_CLASS}"
    smallest = [c.search.smallest_B for c in joint.tried.values() if c.search.smallest_B is not None]
    bound_ps = max(0.0, joint.bound_ps - len(joint.ways.ways))
    return replace(
        found,
        status=_status(joint, found, interrupted),
        bound_s=bound_ps * 1e-12 * (1.0 - 1e-9),
        bound_class=bound_class,
        floor_B=joint.floor_B,
        floor_class=bound_class,
        floor_recipes=joint.floor_recipes,
        smallest_B=min(smallest, default=None),
        stats=stats,
    )


def _status(joint: JointSearch, found: Outcome, interrupted: bool) -> Status:
    if found.schedule is None or joint.time_ps is None:
        return Status.INFEASIBLE if joint.impossible else Status.UNSOLVED
    if joint.time_ps <= joint.bound_ps * (1.0 + _EQUAL):
        return Status.OPTIMAL
    return Status.INTERRUPTED if interrupted else Status.FEASIBLE
