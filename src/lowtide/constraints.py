"""Options of planning, starts of a search, and bytes that a plan has to leave free. Units: `_B` bytes, `_s` seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lowtide.arguments import seconds, shown, text, whole
from lowtide.errors import ArgumentError
from lowtide.ir.compilers import COMPILERS, EAGER
from lowtide.ir.graph import Graph
from lowtide.ir.layout import ALIGNMENT_B, LiveBlock
from lowtide.ir.machine import Link, Machine
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import DEFAULT_WORK, Covers, Environment
from lowtide.ir.schedule import Schedule
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.portfolio import Portfolio
from lowtide.units import Budget


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of planning.

    Arguments:
        budget: what the device may use.
        planner: what searches.
        seed, work, time_limit_s: see `Problem`.
        machine: plan for a machine that is not here, by name or file, predicting instead of measuring.
        shape_limit_s: for how long a plan is sought for a shape while there is one of another shape to begin from;
            the operators' seconds are then scaled from that shape's. None measures and searches every shape in full.
        numerics: how far results may be from plain PyTorch's.
        without: kinds of implementations, or families, that are left out; see `lowtide.ops.catalogue.parse_without`.
        host_budget_B: host bytes for what is offloaded; 0 for nothing, None for no limit.
        link_Bps: what each direction of the link is held to; None for what it can do.
        host_resident: see `Problem`.
        compiler: whose kernels run: "eager", those of PyTorch's operators, or "inductor", those that Inductor compiles.
        links: between device and host, as measured here and limited; empty where nothing is offloaded, or `machine` has
            them.

    Raises:
        ArgumentError: if seed, work, a limit, the machine or the compiler is of the wrong kind, or negative; if kernels
            are to be compiled for a machine that is not here.
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
    host_resident: tuple[int, ...] | None = None
    compiler: str = EAGER

    def __post_init__(self) -> None:
        text("machine", self.machine, '"h200"', or_none=True)
        read = {
            "seed": whole("seed", self.seed),
            "work": whole("work", self.work, example=str(DEFAULT_WORK)),
            "time_limit_s": seconds("time_limit_s", self.time_limit_s),
            "shape_limit_s": seconds("shape_limit_s", self.shape_limit_s),
        }
        for name, value in read.items():
            object.__setattr__(self, name, value)
        if self.compiler not in COMPILERS:
            raise ArgumentError(f"compiler={shown(self.compiler)}: there is {' and '.join(map(repr, COMPILERS))}")
        if self.compiler != EAGER and self.machine is not None:
            raise ArgumentError(
                f"compiler={self.compiler!r} with machine={self.machine!r}: compiled kernels are measured, which is "
                'done here. Leave machine= out, or plan for it with compiler="eager".'
            )

    @property
    def moves(self) -> Machine | None:
        """The machine whose links carry values; None where nothing may be offloaded."""
        return Machine("here", links=self.links) if self.links and self.host_budget_B != 0 else None


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
class Constraints:
    """The bytes that a plan finds taken when it begins, and those that it has to leave free.

    Arguments:
        outside_B: bytes that live for the whole step and belong to no value of the graph, `state_B` and
            `libraries_B` among them.
        state_B: the optimizers' state.
        libraries_B: workspaces that libraries of a GPU keep.
        enforced: whether allocations are to be given addresses.
        reserve_B: bytes for tiny blocks, worker threads and the caller's code between the segments.
        optimizer_B: temporary bytes of the optimizer's step.
        live_blocks: bytes of the arena that tensors of earlier steps hold.
        ceiling_B: where the arena's part for plans ends; None before there is an arena.
        alignment_B: of every address.
    """

    outside_B: int = 0
    state_B: int = 0
    libraries_B: int = 0
    enforced: bool = False
    reserve_B: int = 0
    optimizer_B: int = 0
    live_blocks: tuple[LiveBlock, ...] = ()
    ceiling_B: int | None = None
    alignment_B: int = ALIGNMENT_B

    def free_B(self, graph: Graph, budget_B: int, limit_B: int) -> int:
        """Bytes that the addresses of a plan may take.

        Arguments:
            limit_B: the budget of the arena that there is; a larger one gets a larger arena.

        Returns: fewer than none where even what persists takes more: some of that may live on the host yet. Not
            rounded: the heights that are compared with it are.
        """
        free_B = budget_B - self.outside_B - graph.persistent_B - self.reserve_B
        if self.ceiling_B is not None and budget_B <= limit_B:
            free_B = min(free_B, self.ceiling_B)
        return free_B

    def fixed_B(self, graph: Graph) -> int:
        """Bytes of every budget that a schedule's live bytes may not take."""
        return self.outside_B + self.live_blocks_B + graph.concurrent_B(self.reserve_B)

    @property
    def live_blocks_B(self) -> int:
        """Bytes that tensors of earlier steps hold."""
        return sum(o.size_B for o in self.live_blocks)


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What a plan is asked for.

    Arguments:
        graph: profiled here, or predicted for another machine.
        options: how to plan.
        constraints: what the plan has to leave free.
        covers: what the budget counts, in words.
        environment: in which the graph was profiled.
        device: torch device type that the budget is about.
        device_B: finds out the bytes of the device, for a budget that is a share of them.
        agreed_B: what the budget came to before; None to find out.
        at_least_B: what the budget comes to for larger steps of the same model; they share one budget.
    """

    graph: Graph
    options: PlanOptions
    constraints: Constraints = field(default_factory=Constraints)
    covers: Covers = field(default_factory=Covers)
    environment: Environment = field(default_factory=Environment)
    device: str = "cpu"
    device_B: Callable[[], int]
    agreed_B: int | None = None
    at_least_B: int = 0
