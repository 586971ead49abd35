"""The hard budget of several steps: when it is enforced, how large its arena is, and what lies outside it.

The budget counts every tensor byte. Parameters, buffers, optimizer state and everything that the step allocates lie in
the arena; inputs, and what cannot be relocated (shared with numpy or another process), are left where they are and
taken off. Several models may train under one budget: then all of their parameters and states count in every step.

Units: `_B` bytes.
"""

from __future__ import annotations

import gc
import logging
import threading
import warnings
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, get_args
from weakref import WeakKeyDictionary

import torch
from msgspec.structs import replace

from lowtide.device import cuda, library_workspaces, shim, tenant_shim
from lowtide.device.arena import Arena
from lowtide.device.engines import Engines
from lowtide.device.fingerprint import device_memory_B
from lowtide.errors import ArenaError, BudgetError, BudgetWarning
from lowtide.ir.graph import Graph, Role
from lowtide.ir.layout import LiveBlock, alignment_of, rounded_B
from lowtide.ir.plan import PlanRecord
from lowtide.profile.optimizer import OptimizerNeeds
from lowtide.record import Constraints
from lowtide.runtime.hard_budget import HardBudget
from lowtide.runtime.persistent_storages import bring_in, outside_arena, send_away
from lowtide.runtime.statements import moves_anything
from lowtide.session.host_capacity import host_free_B
from lowtide.session.member import Member, optimizers_of, tensors_of
from lowtide.session.optimizer_hooks import STEPPING, OptimizerWatch
from lowtide.session.reserve import Reserve

_LOG = logging.getLogger("lowtide")
Scope = Literal["step", "process", "none"]
SCOPES = get_args(Scope)
MODEL = "parameters and buffers"


@dataclass(eq=False)
class BudgetScope:
    """One hard budget, and the models that share it.

    Arguments:
        scope: "step": from a forward to the end of its backward, and in the optimizer's step; there, code outside the
            graphs that does not fit is served past the arena, with a warning. "process": from the first step on, of
            all code; what does not fit is refused. "none": nothing is enforced, the budget is accounted.
        members: the models that train under this budget.
        hard_budget: made when the first plan is known.
        reserve: bytes that a plan has to leave free.
        turn: held by the thread whose segment allocates.
        rehouses: whether plans may place what persists on the host.
        engines: what carries out copies; made for the first plan that has some.
    """

    scope: Scope = "step"
    members: list[Member] = field(default_factory=list)
    hard_budget: HardBudget | None = None
    reserve: Reserve = field(init=False)
    turn: AbstractContextManager[bool | None] = field(default_factory=threading.RLock)
    engines: Engines | None = None
    rehouses: bool = False
    _host_resident: dict[int, weakref.ref[torch.Tensor]] = field(default_factory=dict)  # host-resident, by identity
    _former: Arena | None = None  # whose persistent storages may still lie there
    _grown_B: int = 0
    _adopted_B: int = 0  # parameters and buffers that lie in the arena, as it reserves them
    _agreed_B: dict[str, int] = field(default_factory=dict)  # graph key -> budget, as it came out first
    _has_said_why: bool = False
    _device: str | None = None  # once there is an arena
    _watches: WeakKeyDictionary[torch.optim.Optimizer, OptimizerWatch] = field(default_factory=WeakKeyDictionary)

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise BudgetError(f"a scope of {self.scope!r}: it is one of {', '.join(map(repr, SCOPES))}")
        updates_B = lambda: max((m.updates_B() for m in self.members), default=0)  # noqa: E731
        self.reserve = Reserve(lambda: optimizers_of(self.members), updates_B, lambda: self.alignment_B)

    @property
    def device(self) -> str:
        """The torch device type whose memory the budget is about: where most of the members' bytes lie, else CPU."""
        if self._device is None:
            count: dict[str, int] = {}
            for tensor in self.persistent():
                count[tensor.device.type] = count.get(tensor.device.type, 0) + tensor.nbytes
            found = max(count, key=lambda d: count[d], default="cpu")
            if self.hard_budget is None:  # a model may be moved before its first step
                return found
            self._device = found
        return self._device

    @property
    def alignment_B(self) -> int:
        """What every address and size in the arena is a multiple of."""
        return alignment_of(self.device)

    def persistent(self) -> tuple[torch.Tensor, ...]:
        """Parameters and buffers of all members: they live through every step, whether or not it reads them."""
        return tensors_of(self.members)

    def residents(self) -> tuple[torch.Tensor, ...]:
        """The persistent tensors that are device-resident."""
        hosted = self._host_resident
        return tuple(t for t in self.persistent() if id(t) not in hosted or hosted[id(t)]() is not t)

    def leave(self, member: Member) -> None:
        """Removes a model; with the last one the budget ends."""
        if member in self.members:
            self.members.remove(member)
        if not self.members:
            self.dismiss()

    def encloses(self, device: str) -> bool:
        """Whether allocations on a device are held inside an arena of ours."""
        if self.scope == "none" or device != self.device or device not in ("cpu", "cuda"):
            return False
        if device == "cuda" and cuda.active_module() is not None:
            return False  # the process has one arena of its own, for all
        reason = shim.refusal() if device == "cpu" else tenant_shim.refusal()
        if reason and not self._has_said_why:
            self._has_said_why = True
            kind = "accounted" if device == "cpu" else "capped"
            warnings.warn(f"the budget is {kind} and not enforced: {reason}.", BudgetWarning, stacklevel=2)
        return not reason

    def said(self, record: PlanRecord, device: str) -> PlanRecord:
        """A plan without addresses, with how its budget is kept on a device: on a GPU by its allocator, if at all."""
        if record.layout is not None or device != "cuda" or self.scope == "none":
            return record
        kind, covers = cuda.kind_of(record.budget_B), record.covers
        if kind == "capped" and cuda.NOT_HELD not in covers.outside:
            covers = replace(covers, outside=(*covers.outside, cuda.NOT_HELD))
        return replace(record, budget_kind=kind, covers=covers)

    def limit(self, record: PlanRecord) -> None:
        """Caps what torch's own allocator may reserve on the GPU, for a plan whose budget is kept so."""
        if record.budget_kind == "capped":
            cuda.cap(record.budget_B, self, torch.cuda.current_device())

    @property
    def needs(self) -> OptimizerNeeds | None:
        """The optimizers' state and temporaries in bytes; None without an optimizer."""
        return self.reserve.needs

    @property
    def state_B(self) -> int:
        """Bytes of the optimizers' state, as the arena reserves them."""
        return self.reserve.state_B

    @property
    def apart_B(self) -> int:
        """Bytes that count in every step, lie outside the arena and belong to no graph: state, and buckets of DDP."""
        return self.state_B + sum(m.buckets_B for m in self.members)

    @property
    def libraries_B(self) -> int:
        """Bytes that the device's libraries keep for this thread; they are in use from the first time this is asked."""
        return library_workspaces.held_B(self.device)

    @property
    def budget_B(self) -> int:
        """Bytes of the hard budget, or of the largest step met where there is none; 0 before the first step."""
        return max(self._agreed_B.values(), default=0) if self.hard_budget is None else self.hard_budget.budget_B

    def constraints(self, graph: Graph, outside_B: int, live_blocks: tuple[LiveBlock, ...] = ()) -> Constraints:
        """The bytes that a plan of a graph has to leave free.

        Arguments:
            outside_B: bytes of the model that no graph reads.
            live_blocks: what earlier steps left in the arena.
        """
        if self.hard_budget is None:  # afterwards the arena's zone is what it is, and what does not fit goes elsewhere
            self.reserve.set_small_zone(graph)
        reserve_B = self.reserve.reserve_B(graph)
        return Constraints(
            outside_B=outside_B + self.apart_B + self.libraries_B + self._rounding_B,
            state_B=self.state_B,
            libraries_B=self.libraries_B,
            enforced=True,
            reserve_B=reserve_B,
            optimizer_B=self.reserve.temporaries_B(graph),
            live_blocks=live_blocks,
            ceiling_B=None if self.hard_budget is None or self.rehouses else self._free_B(reserve_B),
            alignment_B=self.alignment_B,
        )

    @property
    def _rounding_B(self) -> int:
        """Bytes by which parameters and buffers grow when they are relocated into the arena."""
        if self.hard_budget is not None:
            return self._grown_B
        return self._growth_B(outside_arena(self.residents(), device=self.device))

    def _growth_B(self, storages: Iterable[torch.UntypedStorage]) -> int:
        return sum(rounded_B(s.nbytes(), self.alignment_B) - s.nbytes() for s in storages)

    def free_B(self, record: PlanRecord) -> int:
        """End of the part of the arena that a plan may use."""
        free_B = min(record.budget_B - record.fixed_B, self._free_B(record.reserve_B))
        return max(0, free_B // self.alignment_B * self.alignment_B)

    def _free_B(self, reserve_B: int) -> int:
        assert self.hard_budget is not None
        return self.hard_budget.arena.capacity_B - self.hard_budget.arena.persistent_B - reserve_B

    def agreed_B(self, graph: Graph) -> int | None:
        """The budget in bytes when a graph was planned first; what is learnt later does not raise it."""
        return self._agreed_B.get(graph.key)

    def agree(self, record: PlanRecord) -> None:
        """Notes the budget of a graph in bytes."""
        self._agreed_B.setdefault(record.graph.key, record.budget_B)

    def enclose(self, record: PlanRecord, host_resident: Iterable[torch.Tensor] = ()) -> HardBudget:
        """The hard budget for a plan: the present one, or a new one where there is none yet or it is too low.

        Arguments:
            host_resident: what that plan places on the host; of account for a new arena.
        """
        if self.hard_budget is not None and self.hard_budget.budget_B >= record.budget_B:
            return self.hard_budget
        on_host = {id(t): t for t in host_resident}
        self._host_resident = {key: weakref.ref(t) for key, t in on_host.items()}
        model = outside_arena(self.residents(), device=self.device)
        model_B = sum(s.nbytes() for s in model)
        grown_B = self._growth_B(model)
        inside_B = record.budget_B - record.libraries_B - self._model_B(record) + model_B + grown_B
        persistent_B = self.state_B + model_B + grown_B
        least_B = record.reserved_B + inside_B - record.budget_B  # more than the machine has, nobody could use
        arena = self._new_arena(min(inside_B, max(least_B, device_memory_B(self.device))), persistent_B)
        arena.strict = self.scope == "process"
        before, self.hard_budget = self.hard_budget, HardBudget(arena, record.budget_B, record.budget_B - inside_B)
        self.reserve.begin_anew()
        _LOG.info("an arena of %d B for a budget of %d B", inside_B, record.budget_B)
        arena.set_phase(MODEL)
        if before is not None:
            self._former = before.arena
        if self._former is not None:
            send_away(on_host.values(), self._former)
            self._former = None
        self._adopted_B, self._grown_B = bring_in(self.residents(), arena), grown_B
        if self.scope == "process":
            self.hard_budget.stand()
        arena.set_phase(STEPPING)
        self.watch()
        if before is not None:
            before.retire()
        return self.hard_budget

    def _new_arena(self, capacity_B: int, persistent_B: int) -> Arena:
        def make() -> Arena:
            return Arena(
                capacity_B,
                small_zone_B=self.reserve.small_B,
                persistent_B=persistent_B,
                all_threads=self.scope == "process",
                device=self.device,
            )

        try:
            return make()
        except ArenaError:
            gc.collect()  # models that nobody names any more hold arenas until then
            return make()

    def bring_in(self) -> None:
        """Relocates what persists and lies elsewhere to the arena's zone of persistent storages."""
        if self.hard_budget is not None:
            bring_in(self.residents(), self.hard_budget.arena)

    def set_host_resident(self, host_resident: Iterable[torch.Tensor]) -> None:
        """Relocates persistent storages between arena and host, where another plan had them elsewhere.

        Arguments:
            host_resident: what is placed on the host now.
        """
        chosen = {id(t): weakref.ref(t) for t in host_resident}
        if self.hard_budget is None or chosen == self._host_resident:
            return
        arena, self._host_resident = self.hard_budget.arena, chosen
        send_away(self.persistent(), arena)  # all of them, so that their zone has no holes afterwards
        model = outside_arena(self.residents(), device=self.device)
        self._grown_B = self._growth_B(model)
        arena.persistent_B = self.state_B + sum(s.nbytes() for s in model) + self._grown_B
        self._adopted_B = bring_in(self.residents(), arena)

    def inputs_B(self, record: PlanRecord) -> int:
        """Bytes of a step's inputs, which lie outside the arena and count: as much of it has to be left empty."""
        assert self.hard_budget is not None
        parts = record.breakdown
        held_B = parts.persistent_B + parts.outside_B + parts.libraries_B
        return max(0, held_B - self._adopted_B - self.hard_budget.outside_B)

    def _model_B(self, record: PlanRecord) -> int:
        """Bytes of parameters, buffers and constants, as a plan counts them."""
        inputs_B = sum(v.size_B for v in record.graph.values if v.persistent and v.role is Role.INPUT)
        return record.breakdown.persistent_B + record.breakdown.outside_B - inputs_B

    def engines_for(self, record: PlanRecord) -> Engines | None:
        """The engines for a plan's copies, shared by all plans under this budget; None for a plan without any.

        Raises:
            InfeasibleBudget: if they do not fit into the host budget; nothing has been run.
        """
        if not moves_anything(record.graph, record.schedule):
            return None
        device = next((v.geometry.device for v in record.graph.values if v.geometry is not None), "cpu")
        host_B = host_free_B(record)
        if self.engines is None or (self.engines.host_B, self.engines.limit_Bps) != (host_B, record.link_Bps):
            self.engines = Engines(host_B, record.link_Bps, device)
        return self.engines

    def release(self) -> None:
        """Ends the hard budget, and forgets what it came to; tensors in the arena live on where they are."""
        engines, self.engines = self.engines, None
        if engines is not None:
            engines.close()
        cuda.uncap(self)
        self._agreed_B.clear()
        before, self.hard_budget, self._device = self.hard_budget, None, None
        if before is not None:
            self._former = before.arena
            before.retire()

    def dismiss(self) -> None:
        """Ends the hard budget for good, and leaves the optimizers as they were."""
        self.release()
        for watch in list(self._watches.values()):  # an optimizer may die meanwhile
            watch.close()
        self._watches.clear()

    def watch(self) -> None:
        """Lets the optimizers' steps allocate in the arena, their state in the zone of persistent storages."""
        found = optimizers_of(self.members)
        for optimizer in found:
            if optimizer not in self._watches:
                self._watches[optimizer] = OptimizerWatch(optimizer, lambda: self.hard_budget)
            self._watches[optimizer].bring_in(optimizer)
