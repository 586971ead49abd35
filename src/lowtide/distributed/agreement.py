"""One plan for every rank, by vote: nobody runs a step unless all can.

Every call in training begins with a roll call, one reduction of two integers. Where every rank has its plan, that is
all. Where a rank wants a plan, what it wants is gathered: if all want one for the same program and shapes, the first
rank makes it, for the largest costs and the smallest budget of any rank, and the others carry it over to the graph that
they have captured. Where shapes differ from rank to rank each plans for itself, inside the smallest budget. Then a
second reduction asks whether everybody can.

The law: an event of one rank may change addresses and waits, never the sequence of collectives. In data-parallel
training that sequence is DistributedDataParallel's own, the order of its buckets, whatever the plans are; so a rank may
have a plan of its own around what earlier steps left in its arena.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
from collections.abc import Callable, Iterator, Sequence

import msgspec

from lowtide.distributed.ranks import Ranks, said
from lowtide.errors import InfeasibleBudget, LowtideError, PlanError, PlanMismatch, RanksError
from lowtide.ir.graph import Graph, Role
from lowtide.ir.layout import LiveBlock
from lowtide.ir.likeness import shapes, structure
from lowtide.ir.plan import PlanRecord
from lowtide.ir.text import dumps, loads
from lowtide.record import PlanRequest, budget_in_B, carried_over, place_around
from lowtide.units import format_B

Make = Callable[[PlanRequest], PlanRecord]
_NOTHING_RAN = "Nothing of the model has run on any rank."


class State(enum.IntEnum):
    """What a rank says in a roll call."""

    READY = 0
    WANTS = 1
    FAILED = 2


class _Phase(enum.Enum):
    OUTSIDE = "outside a call in training"
    OPEN = "before the roll call"
    VOTED = "a plan was wanted, and whether everybody can is still to be asked"
    RUNS = "the step runs"
    REFUSED = "a rank cannot take the step, and everybody knows"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank tells the others in a roll call in which not all are ready.

    Arguments:
        state: of the rank.
        error: why it cannot take the step; empty where it can.
        budget_B: what its budget comes to.
        facts: what has to be the same on every rank, by what it is called in messages.
        shapes: digest of the inputs' shapes, and for people.
        program: digest of the captured program.
        constraints: outside_B, state_B, reserve_B, optimizer_B.
        ceiling_B: end of the part of its arena that plans may use; -1 where there is none yet.
        live_blocks: what earlier steps left in its arena, as offsets and sizes.
        times_s: seconds of every recipe.
    """

    state: State = State.READY
    error: str = ""
    is_infeasible: bool = False
    budget_B: int = 0
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    shapes: tuple[str, str] = ("", "")
    program: str = ""
    constraints: tuple[int, int, int, int] = (0, 0, 0, 0)
    enforced: bool = False
    ceiling_B: int = -1
    live_blocks: tuple[tuple[int, int], ...] = ()
    times_s: tuple[float, ...] = ()


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the first rank tells of the plan: the plan's file, or why there is none."""

    plan: str = ""
    error: str = ""
    budget_B: int = 0
    floor_B: int = 0
    smallest_B: int | None = None
    operators: tuple[str, ...] = ()
    is_infeasible: bool = False


class Agreement:
    """What the ranks that train one model agree on before each step.

    Arguments:
        ranks: who they are.
        votes: tells whether a call that begins is one of training, in which every rank takes part.
        begins: is called before every such call.
    """

    def __init__(self, ranks: Ranks, votes: Callable[[], bool], begins: Callable[[int], None] = lambda _: None) -> None:
        self._ranks, self._votes, self._begins = ranks, votes, begins
        self._call = 0
        self._phase = _Phase.OUTSIDE
        self._has_several = False  # whether the forward of this call ends with a vote
        self._ran = False  # whether parts of the forward have run when that vote is taken
        self._cap_B: int | None = None  # the smallest budget of any rank, where they were given different ones
        self._refusal: LowtideError | None = None  # of this call, which all ranks know
        self._apart = False  # whether shapes have differed from rank to rank: captures may then differ as well
        self.votes = 0  # calls in which a plan was wanted, for whoever wants to know

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """One call of the model. On every rank that trains, it ends alike: all run, or all raise.

        Raises:
            RanksError: if another rank cannot take this step.
            InfeasibleBudget: if there is no plan for one of them.
        """
        if self._phase is not _Phase.OUTSIDE or not self._votes():
            yield
            return
        self._call += 1
        self._phase, self._has_several, self._ran, self._refusal = _Phase.OPEN, False, False, None
        try:
            try:
                self._begins(self._call)
                yield
                if self._phase is not _Phase.RUNS:
                    self.before_run()
            except BaseException as error:
                self._failed(error)
                raise
        finally:
            self._phase, self._refusal = _Phase.OUTSIDE, None

    def plan(self, request: PlanRequest, make: Make) -> PlanRecord:
        """The plan of a step: agreed on, where a step is about to begin; else this rank's own.

        Arguments:
            make: makes a plan on this rank, or knows it.

        Raises:
            InfeasibleBudget: if no plan fits on every rank.
            RanksError: if the ranks run different programs.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._phase is not _Phase.OPEN:
            return make(self._capped(request))
        wish = _wish_for(request)
        self._ranks.highest((State.WANTS, 0), self._call)
        self._phase = _Phase.VOTED
        wishes = self._exchanged(wish)
        self._refuse_failed(wishes)
        self.votes += 1
        joint = self._is_joint(wishes)
        budgets_B = [w.budget_B for w in wishes if w.state is State.WANTS]
        if joint and min(budgets_B) < max(budgets_B):
            self._cap_B = min(budgets_B)
        if joint:
            return self._jointly(_joined(self._capped(request), wishes), make, wishes)
        self._apart = True
        return make(self._capped(request))

    def _capped(self, request: PlanRequest) -> PlanRequest:
        """The request inside the smallest budget that any rank was given."""
        if self._cap_B is None:
            return request
        budget_B = min(budget_in_B(request), self._cap_B)
        return dataclasses.replace(request, agreed_B=budget_B, at_least_B=min(request.at_least_B, budget_B))

    def before_run(self, *, several: bool = False) -> None:
        """Called before the first graph of a call runs, when its plan and its addresses are there.

        Arguments:
            several: whether the graphs of this call are met one by one, so that its plan is made at the forward's end.

        Raises:
            RanksError, InfeasibleBudget: if another rank cannot take this step.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._phase is _Phase.OPEN:
            state, more = self._ranks.highest((State.READY, int(several)), self._call)
            self._has_several = bool(more)
            if state == State.READY:
                self._phase = _Phase.RUNS
                return
            self._phase = _Phase.VOTED
            wishes = self._exchanged(Wish())
            self._refuse_failed(wishes)
            self._apart = True
        if self._phase is _Phase.VOTED:
            state, more = self._ranks.highest((State.READY, int(several)), self._call)
            self._has_several = bool(more)
            if state == State.FAILED:
                self._refuse_failed(self._exchanged(Wish()))
            self._phase = _Phase.RUNS

    def forward_ended(self) -> None:
        """The graphs of a call are all known; where any rank met several for the first time, they are planned now."""
        if self._phase is _Phase.RUNS and self._has_several:
            self._phase, self._ran = _Phase.OPEN, True

    def tell(self, error: BaseException) -> None:
        """Tells the other ranks of an error in a backward."""
        self._ranks.tell(self._call, error)

    # ----------------------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> None:
        """This rank cannot take the step, or has failed in it: the others are told."""
        if self._phase is _Phase.REFUSED or (isinstance(error, RanksError) and error.is_final):
            return  # they know it, or cannot be reached
        if self._phase is _Phase.RUNS or not isinstance(error, Exception):  # Ctrl-C does not wait for others
            self._ranks.tell(self._call, error)
            return
        is_infeasible = isinstance(error, InfeasibleBudget)
        try:
            self._ranks.highest((State.FAILED, 0), self._call)
            self._exchanged(Wish(state=State.FAILED, error=said(error), is_infeasible=is_infeasible))
        except RanksError as other:
            error.add_note(f"The other ranks could not be told: {other}")

    def _exchanged(self, wish: Wish) -> list[Wish]:
        return [msgspec.json.decode(m, type=Wish) for m in self._ranks.gather(msgspec.json.encode(wish), self._call)]

    def _refuse_failed(self, wishes: Sequence[Wish]) -> None:
        """Ends the call where a rank cannot take it: it is not asked again whether everybody can.

        Raises:
            RanksError, InfeasibleBudget: then.
        """
        if any(w.state is State.FAILED for w in wishes):
            self._phase, self._refusal = _Phase.REFUSED, _refusal(wishes, ran=self._ran)
            raise self._refusal

    def _is_joint(self, wishes: Sequence[Wish]) -> bool:
        """Whether one plan serves every rank.

        Raises:
            RanksError: if the ranks run different programs, or under different settings; the same on every rank.
        """
        for rank, wish in enumerate(wishes):
            if wish.state is not State.WANTS:
                continue
            for name, value in wish.facts.items():
                first, expected = next((r, w.facts[name]) for r, w in enumerate(wishes) if w.state is State.WANTS)
                if value != expected:
                    raise self._mismatch(f"{name} is {value} on rank {rank} and {expected} on rank {first}")
        if any(w.state is not State.WANTS or w.shapes != wishes[0].shapes for w in wishes):
            return False
        others = [rank for rank, w in enumerate(wishes) if w.program != wishes[0].program]
        if others and not self._apart:
            count, there = len(wishes[others[0]].times_s), len(wishes[0].times_s)
            raise self._mismatch(
                f"for inputs of the same shapes ({wishes[0].shapes[1]}) the model on rank {others[0]} is another "
                f"program than on rank 0: of {count} operators with their implementations, where rank 0 has {there}"
            )
        return not others

    def _mismatch(self, what: str) -> RanksError:
        return RanksError(
            f"the ranks do not train the same model: {what}. {_NOTHING_RAN} Start every rank with the same code, torch "
            "and settings."
        )

    def _jointly(self, request: PlanRequest, make: Make, wishes: Sequence[Wish]) -> PlanRecord:
        """The plan that the first rank makes, for the graph of this rank."""
        mine: PlanRecord | None = None
        told = _Told()
        failure: BaseException | None = None
        if self._ranks.rank == 0:
            try:
                mine = make(request)
                told = _Told(plan=dumps(mine))
            except InfeasibleBudget as error:
                told, failure = _told_of(error, _limit(wishes)), error
            except BaseException as error:  # of any kind: the others wait to hear
                told, failure = _Told(error=said(error)), error
        told = msgspec.json.decode(self._ranks.from_first(msgspec.json.encode(told), self._call), type=_Told)
        if told.is_infeasible:
            raise InfeasibleBudget(
                told.error,
                budget_B=told.budget_B,
                floor_B=told.floor_B,
                smallest_B=told.smallest_B,
                operators=told.operators,
                proof=getattr(failure, "proof", None),
                host_budget_B=request.options.host_budget_B,
            ) from failure
        if failure is not None:
            raise failure
        if told.error:
            raise RanksError(f"rank 0 could not plan this step: it raised {told.error}. {_NOTHING_RAN}")
        if mine is not None:
            return mine
        return carried_to(loads(told.plan, PlanRecord, "the plan of rank 0"), request)


def carried_to(saved: PlanRecord, request: PlanRequest) -> PlanRecord:
    """Another rank's plan for the graph that was captured on this one, checked and placed here.

    Arguments:
        request: that both were asked.

    Raises:
        PlanMismatch: if it cannot be carried out here, inside the same bytes.
    """
    found = carried_over(
        saved, request.graph, constraints=request.constraints, budget_B=saved.budget_B, covers=request.covers,
        environment=request.environment, any_numbers=True,
    )  # fmt: skip
    if not request.constraints.enforced:
        return found
    free_B = request.constraints.free_B(found.graph, saved.budget_B, request.at_least_B)
    if found.layout is None or found.layout.height_B > free_B:
        try:
            placed = place_around(found, request.constraints.live_blocks, free_B)
        except PlanError as error:
            raise PlanMismatch(f"the plan of rank 0 has no addresses on this rank: {error}") from error
        if placed is None:
            raise PlanMismatch(
                f"the plan of rank 0 does not fit into {format_B(saved.budget_B)} on this rank, whose operators "
                "allocate otherwise"
            )
        found = placed
    return found


def _wish_for(request: PlanRequest) -> Wish:
    """What a rank that wants a plan tells the others."""
    graph, options, constraints = request.graph, request.options, request.constraints
    inputs = [(v.geometry.dtype, v.geometry.shape) for v in graph.values if v.role is Role.INPUT and v.geometry]
    environment = request.environment
    return Wish(
        state=State.WANTS,
        budget_B=budget_in_B(request),
        facts={
            "torch": environment.torch,
            "lowtide": environment.lowtide,
            "the device": request.device,
            "numerics": options.numerics.value,
            "without=": ", ".join(sorted(options.without)) or "empty",
            "the host budget": str(options.host_budget_B),
            "the budget": "enforced" if constraints.enforced else "not enforced",
        },
        shapes=(hashlib.sha256(repr(inputs).encode()).hexdigest()[:16], shapes(graph)),
        program=structure(graph),
        constraints=(constraints.outside_B, constraints.state_B, constraints.reserve_B, constraints.optimizer_B),
        ceiling_B=-1 if constraints.ceiling_B is None else constraints.ceiling_B,
        live_blocks=tuple((b.offset_B, b.size_B) for b in constraints.live_blocks),
        times_s=tuple(r.time_s for r in graph.recipes),
    )


def _joined(request: PlanRequest, wishes: Sequence[Wish]) -> PlanRequest:
    """The request whose answer serves every rank: the largest costs, the smallest budget, all live blocks."""
    ceilings_B = [w.ceiling_B for w in wishes if w.ceiling_B >= 0]
    outside_B, state_B, reserve_B, optimizer_B = (
        max(column) for column in zip(*(w.constraints for w in wishes), strict=True)
    )
    constraints = dataclasses.replace(
        request.constraints,
        outside_B=outside_B,
        state_B=state_B,
        reserve_B=reserve_B,
        optimizer_B=optimizer_B,
        live_blocks=_union(block for w in wishes for block in w.live_blocks),
        ceiling_B=min(ceilings_B) if ceilings_B else None,
    )
    times_s = [max(column) for column in zip(*(w.times_s for w in wishes), strict=True)]
    return dataclasses.replace(
        request,
        graph=_with_times(request.graph, times_s),
        constraints=constraints,
        agreed_B=min(w.budget_B for w in wishes),
    )


def _with_times(graph: Graph, times_s: Sequence[float]) -> Graph:
    """A graph whose recipes take other seconds."""
    if all(r.time_s == t for r, t in zip(graph.recipes, times_s, strict=True)):
        return graph
    recipes = (msgspec.structs.replace(r, time_s=t) for r, t in zip(graph.recipes, times_s, strict=True))
    return msgspec.structs.replace(graph, recipes=tuple(recipes))


def _union(blocks: Iterator[tuple[int, int]]) -> tuple[LiveBlock, ...]:
    """Bytes that are taken on any rank, as disjoint blocks by address."""
    found: list[LiveBlock] = []
    for offset_B, size_B in sorted(set(blocks)):
        last = found[-1] if found else None
        if last is not None and offset_B < last.offset_B + last.size_B:
            end_B = max(last.offset_B + last.size_B, offset_B + size_B)
            found[-1] = LiveBlock(last.offset_B, end_B - last.offset_B)
        else:
            found.append(LiveBlock(offset_B, size_B))
    return tuple(found)


def _limit(wishes: Sequence[Wish]) -> str:
    """Which rank leaves a plan the fewest bytes, in words."""

    def free_B(wish: Wish) -> int:
        outside_B, _, reserve_B, _ = wish.constraints
        return wish.budget_B - outside_B - reserve_B - sum(size_B for _, size_B in wish.live_blocks)

    least = min(range(len(wishes)), key=lambda rank: free_B(wishes[rank]))
    most_B = max(map(free_B, wishes))
    if free_B(wishes[least]) == most_B:
        return f"All {len(wishes)} ranks leave a plan as few bytes."
    return (
        f"Rank {least} limits: its budget of {format_B(wishes[least].budget_B)} leaves a plan "
        f"{format_B(most_B - free_B(wishes[least]))} less than that of others."
    )


def _told_of(error: InfeasibleBudget, limit: str) -> _Told:
    return _Told(
        error=f"{error}\n{limit}",
        budget_B=error.budget_B,
        floor_B=error.floor_B,
        smallest_B=error.smallest_B,
        operators=error.operators,
        is_infeasible=True,
    )


def _refusal(wishes: Sequence[Wish], *, ran: bool) -> LowtideError:
    """The error of ranks that could take a step that another one cannot take."""
    failed = [(rank, w) for rank, w in enumerate(wishes) if w.state is State.FAILED]
    rank, wish = failed[0] if failed else (0, Wish(error="an error that it could not tell"))
    many = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    end = "Parts of the forward have run; no parameter has been changed." if ran else _NOTHING_RAN
    text = f"rank {rank}{many} cannot take this step, so that no rank takes it: it raised {wish.error}\n{end}"
    return InfeasibleBudget(text) if wish.is_infeasible else RanksError(text, is_final=False)
