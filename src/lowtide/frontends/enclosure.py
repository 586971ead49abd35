"""The wall round one session's steps: when there is one, how large its arena is, and what has to stay free in it.

The budget counts every tensor byte. Parameters, buffers, optimizer state and everything that the step allocates lie in
the arena; inputs, and what cannot be moved there (shared with numpy or another process), stay where they are and are
taken off.

Units: `_B` bytes.
"""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from msgspec.structs import replace
from torch.utils.hooks import RemovableHandle

from lowtide.device import cuda, shim
from lowtide.device.arena import Arena
from lowtide.device.fingerprint import device_memory_B
from lowtide.errors import ArenaError, BudgetError, BudgetWarning
from lowtide.ir.graph import Graph, Role
from lowtide.ir.layout import ALIGNMENT_B, SMALL_B, Obstacle, rounded_B
from lowtide.ir.plan import PlanRecord
from lowtide.ir.sequence import blocks_of, small_peak_B
from lowtide.pipeline import Ground
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.profile.optimizer import OptimizerNeeds, optimizer_needs
from lowtide.runtime.homes import bring_home, homeless, state_tensors
from lowtide.runtime.wall import Wall
from lowtide.units import format_B

_LOG = logging.getLogger("lowtide")
Scope = Literal["step", "process", "none"]
SCOPES = get_args(Scope)
_SLACK_B = 1024  # tiny tensors of the caller's own: loss values, counters, the optimizer's scalars
_LEAST_BETWEEN_B = 64 * 1024
MODEL = "parameters and buffers"
STEPPING = "the optimizer's step"
_LOSS_COPIES = 3  # a loss of the caller's own holds this many tensors of an output's size at once: cross-entropy


@dataclass(eq=False)
class Enclosure:
    """What a session knows about its wall.

    Arguments:
        scope: "step": from a forward to the end of its backward, and in the optimizer's step; there, code outside the
            graphs that finds no room is served past the arena, loudly. "process": from the first step on, whoever
            allocates, and whoever finds no room is refused. "none": nothing is enforced, the budget is accounted.
        optimizer: gives the one whose state and temporaries count, while it lives.
        persistent: gives the model's parameters and buffers, while it lives.
        wall: made when the first plan is known.
    """

    scope: Scope = "step"
    optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None
    persistent: Callable[[], Iterable[torch.Tensor]] = tuple
    wall: Wall | None = None
    _needs: OptimizerNeeds | None = None
    _small_B: int = 0
    _spilled_B: int = 0
    _has_warned: bool = False
    _troubles: int = 0  # of any kind, when they were last looked at
    _crowded: int = 0  # refusals, and departures with overflow, until then
    _given_up: set[str] = field(default_factory=set)
    _grown_B: int = 0
    _adopted_B: int = 0  # parameters and buffers that lie in the arena, as it reserves them
    _agreed_B: dict[str, int] = field(default_factory=dict)  # graph key -> budget, as it came out first
    _has_said_why: bool = False
    _hooks: list[RemovableHandle] = field(default_factory=list)
    _between_B: dict[str, int] = field(default_factory=dict)  # graph key -> what the caller's code really took

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise BudgetError(f"a scope of {self.scope!r}: it is one of {', '.join(map(repr, SCOPES))}")

    def encloses(self, device: str) -> bool:
        """Whether allocations on a device are held inside an arena of ours."""
        if self.scope == "none" or device != "cpu":
            return False
        reason = shim.refusal()
        if reason and not self._has_said_why:
            self._has_said_why = True
            warnings.warn(f"the budget is accounted and not enforced: {reason}.", BudgetWarning, stacklevel=2)
        return not reason

    def said(self, record: PlanRecord, device: str) -> PlanRecord:
        """A plan without addresses, with how its budget is kept on a device: on a GPU by its allocator, if at all."""
        if record.layout is not None or device != "cuda" or self.scope == "none":
            return record
        return replace(record, budget_kind=cuda.kind_of(record.budget_B))

    def limit(self, record: PlanRecord) -> None:
        """Caps what torch's own allocator may reserve on the GPU, for a plan whose budget is kept so."""
        if record.budget_kind == "capped":
            cuda.cap(record.budget_B, torch.cuda.current_device())

    @property
    def needs(self) -> OptimizerNeeds | None:
        """What the optimizer takes, found out once, before its first step; None without an optimizer."""
        optimizer = self.optimizer()
        if self._needs is None and optimizer is not None:
            self._needs = optimizer_needs(optimizer, alignment_B=ALIGNMENT_B)
        return self._needs

    @property
    def state_B(self) -> int:
        """Bytes of the optimizer's state, as the arena reserves them."""
        return 0 if self.needs is None else sum(rounded_B(size_B) for size_B in self.needs.state_sizes_B)

    @property
    def budget_B(self) -> int:
        """Bytes of the wall; 0 before there is one."""
        return 0 if self.wall is None else self.wall.budget_B

    def ground(self, graph: Graph, outside_B: int, obstacles: tuple[Obstacle, ...] = ()) -> Ground:
        """What a plan of a graph has to leave room for.

        Arguments:
            outside_B: bytes of the model that no graph reads.
            obstacles: what earlier steps left in the arena.
        """
        temporaries_B = 0 if self.needs is None or len(graph.segments) < 2 else rounded_B(self.needs.temporaries_B)
        if self.wall is None:  # afterwards its arena's zone is what it is; what does not fit there goes elsewhere
            self._small_B = _small_zone_B(graph, self.needs)
        workers_B = max((r.trace.workers_B for r in graph.recipes), default=0)
        reserve_B = self._small_B + rounded_B(workers_B) + self._between(graph)
        return Ground(
            outside_B=outside_B + self.state_B + self._rounding_B,
            enforced=True,
            reserve_B=reserve_B,
            optimizer_B=temporaries_B,
            obstacles=obstacles,
            ceiling_B=None if self.wall is None else self._room_B(reserve_B),
        )

    @property
    def _rounding_B(self) -> int:
        """Bytes by which parameters and buffers grow when they move into the arena."""
        if self.wall is not None:
            return self._grown_B
        return sum(rounded_B(s.nbytes()) - s.nbytes() for s in homeless(self.persistent()))

    def room_B(self, record: PlanRecord) -> int:
        """Where the part of the arena ends that a plan may use."""
        room_B = min(record.budget_B - record.fixed_B, self._room_B(record.reserve_B))
        return max(0, room_B // ALIGNMENT_B * ALIGNMENT_B)

    def _room_B(self, reserve_B: int) -> int:
        assert self.wall is not None
        return self.wall.arena.capacity_B - self.wall.arena.home_B - reserve_B

    def _between(self, graph: Graph) -> int:
        """Bytes for the caller's code between the segments: measured, or as much as a loss usually takes."""
        if graph.key in self._between_B:
            return self._between_B[graph.key]
        tangents = [v for v in graph.arriving if not v.persistent]
        begin = min((v.arrives or 0 for v in tangents), default=0)  # where the caller's own loss hands over
        inside = any(v.size_B < SMALL_B for v in tangents if v.arrives == begin)  # the loss is the model's own
        copies = 1 if inside else _LOSS_COPIES
        large = [v for v in tangents if v.size_B >= SMALL_B]
        return sum(rounded_B(v.size_B) * (copies if v.arrives == begin else 1) for v in large)

    def agreed_B(self, graph: Graph) -> int | None:
        """What the budget came to when a graph was planned first; what is learnt later does not raise it."""
        return self._agreed_B.get(graph.key)

    def agree(self, record: PlanRecord) -> None:
        """Notes what the budget came to."""
        self._agreed_B.setdefault(record.graph.key, record.budget_B)

    def learn(self, graph: Graph) -> bool:
        """Looks whether the caller's code between the segments found its room too small since the last look.

        Returns: whether the reserve of the graph's plans has been raised, so that they should be made again.
        """
        assert self.wall is not None
        troubles = self.wall.arena.troubles
        if troubles == self._troubles:
            return False
        self._troubles = troubles
        seen = self.wall.arena.stats()
        spilled_B, self._spilled_B = seen.spilled_B - self._spilled_B, seen.spilled_B
        if spilled_B and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "code outside lowtide's graphs, between a forward and its backward or in the optimizer's step, found "
                f"no room in the budget and took {format_B(spilled_B)} beside it. If it belongs to this training, it "
                "gets room now where the budget allows; else raise the budget. If it is another model's, finish this "
                'one\'s backward first, or delete its loss. fit(..., scope="process") refuses instead.',
                BudgetWarning,
                stacklevel=2,
            )
        crowded = seen.failures_for_room + seen.failures_for_contiguity + min(seen.departures, seen.overflow)
        before, self._crowded = self._crowded, crowded
        if not (spilled_B or crowded > before) or graph.key in self._given_up:
            return False
        self._between_B[graph.key] = max(2 * self._between(graph), rounded_B(spilled_B), _LEAST_BETWEEN_B)
        return True

    def give_up(self, graph: Graph) -> None:
        """Leaves a graph's reserve as it is: the budget has no room for more."""
        self._given_up.add(graph.key)

    def expect_between(self, graph: Graph, between_B: int) -> None:
        """Says what code between the segments was seen to take, before any step."""
        self._between_B.setdefault(graph.key, rounded_B(between_B) + self._between(graph))

    def enclose(self, record: PlanRecord) -> Wall:
        """The wall for a plan: the one there is, or a new one where there is none yet or it is too low."""
        if self.wall is not None and self.wall.budget_B >= record.budget_B:
            return self.wall
        model = homeless(self.persistent())
        model_B = sum(s.nbytes() for s in model)
        grown_B = sum(rounded_B(s.nbytes()) for s in model) - model_B
        inside_B = record.budget_B - self._model_B(record) + model_B + grown_B
        home_B = self.state_B + model_B + grown_B
        least_B = record.reserved_B + inside_B - record.budget_B  # more than the machine has, nobody could use
        arena = self._new_arena(min(inside_B, max(least_B, device_memory_B("cpu"))), home_B)
        arena.strict = self.scope == "process"
        before, self.wall = self.wall, Wall(arena, record.budget_B, record.budget_B - inside_B)
        self._spilled_B = self._crowded = self._troubles = 0
        _LOG.info("an arena of %d B for a budget of %d B", inside_B, record.budget_B)
        arena.set_phase(MODEL)
        self._adopted_B, self._grown_B = bring_home(self.persistent(), arena), grown_B
        if self.scope == "process":
            self.wall.stand()
        optimizer = self.optimizer()
        if optimizer is not None:
            if not self._hooks:
                self._watch(optimizer)
            arena.set_phase(STEPPING)
            bring_home(state_tensors(optimizer), arena)
        if before is not None:
            before.retire()
        return self.wall

    def _new_arena(self, capacity_B: int, home_B: int) -> Arena:
        def make() -> Arena:
            return Arena(capacity_B, small_zone_B=self._small_B, home_B=home_B, all_threads=self.scope == "process")

        try:
            return make()
        except ArenaError:
            gc.collect()  # models that nobody names any more hold arenas until then
            return make()

    def beside_B(self, record: PlanRecord) -> int:
        """Bytes of a step's inputs, which lie outside the arena and count: as much of it has to stay empty."""
        assert self.wall is not None
        beside_B = record.outside_B - self.state_B + record.graph.persistent_B - self._adopted_B
        return max(0, beside_B - self.wall.outside_B)

    def _model_B(self, record: PlanRecord) -> int:
        """Bytes of parameters, buffers and constants, as a plan counts them."""
        inputs_B = sum(v.size_B for v in record.graph.values if v.persistent and v.role is Role.INPUT)
        return record.outside_B - self.state_B + record.graph.persistent_B - inputs_B

    def release(self) -> None:
        """Takes the wall away, and what the budget came to; tensors in the arena live on where they are."""
        self._agreed_B.clear()
        before, self.wall = self.wall, None
        if before is not None:
            before.retire()

    def dismiss(self) -> None:
        """Takes the wall away for good, and leaves the optimizer as it was."""
        self.release()
        while self._hooks:
            self._hooks.pop().remove()

    def _watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Lets the optimizer's step allocate inside the wall, its state at the home zone."""
        known = 0  # entries of the state that are at home

        def begin(*_: object) -> None:
            if self.wall is not None:
                self.wall.rest(STEPPING)

        def end(stepped: torch.optim.Optimizer, *_: object) -> None:
            nonlocal known
            if self.wall is None:
                return
            self.wall.wake()
            if len(stepped.state) != known:
                known = len(stepped.state)
                bring_home(state_tensors(stepped), self.wall.arena)

        def loaded(stepped: torch.optim.Optimizer) -> None:
            if self.wall is not None:
                bring_home(state_tensors(stepped), self.wall.arena)

        self._hooks = [
            optimizer.register_step_pre_hook(begin),
            optimizer.register_step_post_hook(end),
            optimizer.register_load_state_dict_post_hook(loaded),
        ]


def _small_zone_B(graph: Graph, needs: OptimizerNeeds | None) -> int:
    """Bytes for requests too small to be planned: those of a step that keeps everything, the optimizer's, and slack."""
    step_B = small_peak_B(blocks_of(graph, keep_all_schedule(graph), small_B=0))
    state_B = sum(rounded_B(s) for s in (() if needs is None else needs.state_sizes_B) if s < SMALL_B)
    return rounded_B(step_B + step_B // 8 + state_B + _SLACK_B)
