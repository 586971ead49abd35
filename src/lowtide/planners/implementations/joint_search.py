"""One solve over all choices of options in progress: what was tried, the bound for all of them, the limits.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field

from msgspec.structs import replace

from lowtide._core import Retention
from lowtide.errors import PlanError
from lowtide.ir.plan import DEFAULT_WORK, Problem
from lowtide.ir.schedule import Schedule
from lowtide.planners.base import Watch
from lowtide.planners.bounds.cut_model import choice_cut
from lowtide.planners.bounds.cut_points import CutPoint, cut_point_of, end_of
from lowtide.planners.bounds.milp import PS_PER_MS, Effort
from lowtide.planners.chain.chain_start import chain_start
from lowtide.planners.clock import Clock, Deadline, worth_s
from lowtide.planners.cuts import cut_and_replay
from lowtide.planners.greedy import descend, mend
from lowtide.planners.implementations.candidates import Candidates
from lowtide.planners.implementations.choice import choose
from lowtide.planners.implementations.dominance import better_options, reduced, thrifty
from lowtide.planners.keep_all import find_floor, keep_all
from lowtide.planners.reductions.stage import EXIT
from lowtide.planners.search import Search
from lowtide.planners.start import read_back

_COLUMNS = 2500  # of a model of several cut points
_NODES, _NODES_OF_TWO = 10, 3  # of the tree of a model of one cut point, and of two
_LOOKING = 0.4  # of a limit of time, for the choice
_CUT, _PROBE = 2_000, 200  # proposals that take as long
_LEAST_s = 1.0  # of searching: what is worth less is left
_NEARBY = (1, 2, -1, -2)  # places
_APART = 5  # places: closer cut points say the same
_CLOSE = 1e-3  # as a fraction of the step
_WORTH = 1e-5  # as a fraction of the step: what another option has to bring
_MENDS = 12  # drops that mend a plan with another option

Choice = dict[int, int]
Key = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Deep:
    """What can be done with the program of one choice.

    Arguments:
        thoroughly: plans it like any program, from scratch.
        anneal: looks for better plans near the incumbent.
        smallest: notes the smallest budget for which a plan is found.
    """

    thoroughly: Callable[[Search], object]
    anneal: Callable[[Search], object]
    smallest: Callable[[Search], object]


@dataclass
class Candidate:
    """A choice and the search for its schedule.

    Arguments:
        lowest: the retention with the lowest peak that the quick part came to.
        thorough: whether it was planned like any program.
    """

    choice: Choice
    search: Search
    lowest: Retention | None = None
    thorough: bool = False

    def grant(self, clock: Clock, work: int) -> None:
        """Lets the search go on for so many proposals; what is proved for all choices holds for this one.

        Arguments:
            clock: of all choices.
        """
        self.search.clock.prove(clock.bound_ps)
        self.search.clock.deadline = clock.deadline
        self.search.problem = replace(self.search.problem, work=self.search.work + work)

    @property
    def rank(self) -> tuple[float, int]:
        """What sorts better candidates first: the time of the plan; without one, how full it still is."""
        time_ps = self.search.time_ps
        peak_B = 2**62 if self.lowest is None else self.lowest.peak_B
        return (float("inf"), peak_B) if time_ps is None else (time_ps, 0)

    @property
    def state(self) -> Retention | None:
        """Its plan; without one, what came closest."""
        return self.lowest if self.search.retention is None else self.search.state()


@dataclass
class JointSearch:
    """One solve over all choices.

    Invariant: `tried` has every choice that was planned; the clock's bound holds for every schedule of every choice.
    """

    problem: Problem  # its first runs in the order of the class
    candidates: Candidates
    deadline: InitVar[Deadline]
    watch: InitVar[Watch | None]
    order: str
    floor_B: int = 0
    floor_recipes: tuple[int, ...] = ()
    impossible: bool = False
    tried: dict[Key, Candidate] = field(default_factory=dict)
    cut_points: list[CutPoint] = field(default_factory=list)
    singles: dict[CutPoint, float] = field(default_factory=dict)  # what one cut alone proves
    asked: int = 0  # work that cuts and probes stand for

    def __post_init__(self, deadline: Deadline, watch: Watch | None) -> None:
        plain_ps = sum(self.problem.graph.recipes[r].time_s for r in self.problem.graph.program) * 1e12
        self.clock = Clock(deadline, self, plain_ps, watch)
        self.clock.prove(self.candidates.least_ps)
        self.core, self.alone = reduced(self.candidates)
        self.better = better_options(self.candidates)

    @property
    def best(self) -> Candidate | None:
        """The candidate with the fastest plan, or the one that came closest to one."""
        return min(self.tried.values(), key=lambda c: c.rank, default=None)

    @property
    def time_ps(self) -> int | None:
        """Of the fastest plan."""
        return None if self.best is None else self.best.search.time_ps

    @property
    def is_done(self) -> bool:
        """Whether there is a plan, and it is close enough to the bound, or the work is done, or more would not pay."""
        if self.time_ps is None:
            return False
        work = max(self.problem.work, DEFAULT_WORK)
        done = self.asked >= self.problem.work or worth_s(self.time_ps, self.clock.bound_ps, work) < _LEAST_s
        return done or self.clock.is_close()

    @property
    def work(self) -> int:
        """Proposals so far."""
        return sum(c.search.work for c in self.tried.values())

    def narrowed(self, candidates: Candidates, share: float) -> JointSearch:
        """A search of its own among fewer options, with as much work and a share of the time that is left.

        Arguments:
            candidates: some of these.
        """
        problem, deadline = replace(self.problem, start=None), self.clock.deadline.rest(share)
        found = JointSearch(problem, candidates, deadline, self.clock.relay, self.order)
        found.clock.prove(self.clock.bound_ps)
        return found

    def take(self, smaller: JointSearch, share: float) -> None:
        """Takes what was tried among fewer options, and grants itself a share of the work from there on."""
        for key, found in smaller.tried.items():
            mine = self.tried.get(key)
            if mine is None or found.rank < mine.rank:
                self.tried[key] = found
        self.problem = replace(self.problem, work=self.work + int(share * self.problem.work))

    def candidate(self, choice: Choice) -> Candidate | None:
        """A choice that was not tried yet, its search begun; None if it was, or if it goes round in a circle."""
        key = _key(choice)
        if key in self.tried:
            return None
        found = self._begun(key)
        if found is not None:
            self.tried[key] = found
        return found

    def _begun(self, key: Key) -> Candidate | None:
        try:
            graph = choose(self.problem.graph, dict(key))
        except PlanError:
            return None
        work = max(0, self.problem.work - self.work)
        problem = replace(self.problem, graph=graph, work=work, start=None)
        search = Search(problem, deadline=self.clock.deadline, watch=self.clock.relay)
        search.clock.prove(self.clock.bound_ps)
        return Candidate(dict(key), search)

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

    def probe(self, choice: Choice, schedule: Schedule, than_ps: int) -> bool:
        """Tries a plan with another choice; keeps it if it is faster than `than_ps`, or mended is."""
        key = _key(choice)
        found = self.tried.get(key) or self._begun(key)
        if found is None:
            return False
        self.asked += _PROBE
        search = found.search
        search.clock.stage = "flips"
        search.clock.tick()
        state = search.program.keep_all(search.budget_B)
        if not state.assign(read_back(search.program, schedule)):
            return False
        mend(search, state, _MENDS)
        if search.time_ps is None or search.time_ps >= (1.0 - _WORTH) * than_ps:
            return False
        self.tried[key] = found
        return True

    def hurry(self, found: Candidate, *, climb: bool = False) -> None:
        """The quick part, behind keep-all."""
        search = found.search
        search.run("floor", find_floor)
        if search.time_ps is not None or search.proved_impossible:
            return
        search.run("greedy", descend)
        search.run("single_cut", lambda s: _note(found, cut_and_replay(s, 1, climb=climb)))

    def note(self, candidate: Candidate, state: Retention) -> None:
        """Remembers the cut point at which a plan is fullest."""
        cut_point = _cut_point(self, candidate, state.peak_stage)
        if cut_point not in self.cut_points:
            self.cut_points.append(cut_point)

    def link(self, found: Candidate) -> None:
        """Plans a choice along the chain of its forward."""
        if not found.search.proved_impossible:
            found.search.run("chain", lambda s: _note(found, chain_start(s)))

    @property
    def looking(self) -> Deadline:
        """Until when choices are looked for."""
        return self.clock.deadline.part(_LOOKING)

    @property
    def is_late(self) -> bool:
        """Whether the share of the time is over in which choices are looked for."""
        return self.looking.is_over

    def cut(self, cut_points: Sequence[CutPoint]) -> Choice | None:
        """Proves what cuts over all choices prove; returns what the best solution chooses."""
        self.asked += _CUT
        model = choice_cut(self.candidates, cut_points, self.problem.budget_B)
        if len(cut_points) > 1 and model.columns > _COLUMNS:
            return None
        close_ms = _CLOSE * self.candidates.least_ps / PS_PER_MS
        nodes = _NODES if len(cut_points) == 1 else _NODES_OF_TWO
        solution = model.solve(self.problem.budget_B, Effort(close_ms, nodes, self.looking.left_s))
        self.clock.prove(solution.bound_ps)
        if len(cut_points) == 1:
            self.singles[cut_points[0]] = solution.bound_ps
        self.impossible = self.impossible or solution.impossible
        self.clock.stats["joint_cuts"] = self.clock.stats.get("joint_cuts", 0) + 1
        return None if solution.kept is None else self.settled(dict(solution.choice))

    def with_best(self) -> CutPoint | None:
        """A cut point close to the one at which a single cut proves most, not cut at yet; None if there is none."""
        if not self.singles:
            return None
        best = max(self.singles, key=lambda m: self.singles[m])
        begins, end = self.candidates.begins[best.segment : best.segment + 2]
        places = (best.place + apart for apart in _NEARBY)
        near = (CutPoint(best.segment, p) for p in places if begins <= p < end)
        return next((m for m in near if m not in self.singles), None)

    def telling_cut_points(self) -> list[CutPoint]:
        """The cut point at which one cut proves most, and the last one noted that lies apart from it."""
        if not self.singles:
            return []
        best = max(self.singles, key=lambda m: self.singles[m])
        apart = [m for m in self.cut_points if m.segment != best.segment or abs(m.place - best.place) >= _APART]
        return [best, *apart[-1:]]

    def promising(self) -> list[Candidate]:
        """The choice of which least is proved, then the one with the best plan so far."""
        possible = [c for c in self.tried.values() if not c.search.proved_impossible]
        ranked = sorted(possible, key=lambda c: c.rank)
        first = sorted(ranked, key=lambda c: round(c.search.clock.bound_ps / (self.clock.bound_ps * _CLOSE)))[:1]
        return [*first, *(c for c in ranked if c not in first)]

    def settled(self, choice: Choice) -> Choice:
        """The choice with the better one of two options where one is never worse."""
        whole = self.alone | choice
        return {g: self.better.get((g, k), k) for g in self.candidates.groups for k in (whole.get(g, 0),)}

    @property
    def thrifty(self) -> list[Key]:
        """The choices that are asked for the smallest budget, whatever this one is: thrifty options, the program's."""
        return list(dict.fromkeys((_key(thrifty(self.candidates)), ())))

    def thriftiest(self) -> list[Candidate]:
        """Those choices, their searches begun."""
        found = []
        for key in self.thrifty:
            candidate = self.tried.get(key) or self._begun(key)
            if candidate is not None:
                self.tried[key] = candidate
                found.append(candidate)
        return found


def _key(choice: Choice) -> Key:
    return tuple(sorted((g, k) for g, k in choice.items() if k))


def _note(found: Candidate, state: Retention | None) -> None:
    if state is not None and (found.lowest is None or state.peak_B < found.lowest.peak_B):
        found.lowest = state


def _cut_point(joint: JointSearch, candidate: Candidate, stage: int) -> CutPoint:
    """The cut point of a stage of a choice's program."""
    found = candidate.search.program.stages[stage]
    if found.recipe >= 0:
        return cut_point_of(joint.candidates, found.recipe)
    if found.recipe == EXIT:
        return end_of(joint.candidates, found.segment)
    places = [p for p, s in enumerate(joint.candidates.segment_of) if s == found.segment]
    return CutPoint(found.segment, places[0]) if places else end_of(joint.candidates, found.segment)
