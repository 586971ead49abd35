"""Problems, outcomes, and plan records.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from lowtide.ir.budget import BudgetBreakdown
from lowtide.ir.fidelity import Fidelity
from lowtide.ir.graph import Graph
from lowtide.ir.layout import Layout
from lowtide.ir.machine import Link, Machine
from lowtide.ir.numerics import Numerics
from lowtide.ir.schedule import Schedule

DEFAULT_WORK = 4_000_000  # ten seconds at a thousand operators, where so much is needed to come close to the bound


class Status(enum.Enum):
    """How a solve ended; the text says what to do next."""

    OPTIMAL = "No schedule of the bound's class is faster."
    FEASIBLE = "Legal; stopped at the work limit. Compare its time with the bound, or allow more work."
    INTERRUPTED = "Legal; planning was interrupted, this is the best plan until then."
    UNSOLVED = "No plan was found, and none was proved impossible. Raise the budget or allow more work."
    INFEASIBLE = "Proved impossible. Raise the budget to the smallest one named."


class Problem(msgspec.Struct, frozen=True):
    """Plan `graph` so that live bytes never exceed `budget_B`.

    Arguments:
        budget_B: device bytes for everything in the graph, its persistent values included.
        seed: for planners that search; the same seed and work give the same outcome.
        work: effort, in planner-independent units of roughly one proposed change each.
        time_limit_s: stop searching after this long even if work is left; None for no limit.
            A limit that strikes makes the outcome depend on the machine's speed.
        start: a schedule to begin from, perhaps made for other sizes of the same program. A planner may use it or
            not; what uses it has a plan at once if it fits, or can be made to.
        machine: whose links copy values to the host and back; None where nothing can be offloaded.
        host_budget_B: host bytes for what is offloaded, host-resident values included; 0 for nothing, None for no
            limit.
        host_resident: the persistent values that are host-resident, and no others; None where that is to be chosen.
    """

    graph: Graph
    budget_B: int
    seed: int = 0
    work: int = DEFAULT_WORK
    time_limit_s: float | None = None
    start: Schedule | None = None
    machine: Machine | None = None
    host_budget_B: int | None = 0
    host_resident: tuple[int, ...] | None = None

    @property
    def can_move(self) -> bool:
        """Whether values may be offloaded to the host."""
        return self.machine is not None and bool(self.machine.links) and self.host_budget_B != 0


class Outcome(msgspec.Struct, frozen=True):
    """What a planner found.

    Arguments:
        schedule: None when UNSOLVED or INFEASIBLE.
        solver: which planner made the schedule.
        bound_s: no schedule of `bound_class` within the budget is faster.
        floor_B: no schedule of `floor_class` lives in fewer bytes.
        floor_recipes: the recipes that set the floor.
        smallest_B: smallest budget for which a plan is known; None when not looked for.
        smallest: that plan; None where `schedule` is one, and from planners that only know its bytes.
        hosted: persistent values that are host-resident; the schedule is one of `housed(graph, hosted)`.
        stats: what the solve did (moves tried, nodes, seconds per stage, ...).
    """

    schedule: Schedule | None
    status: Status
    solver: str
    bound_s: float = 0.0
    bound_class: str = "any schedule"
    floor_B: int = 0
    floor_class: str = "any schedule"
    floor_recipes: tuple[int, ...] = ()
    smallest_B: int | None = None
    smallest: Schedule | None = None
    hosted: tuple[int, ...] = ()
    stats: dict[str, Any] = {}


class Environment(msgspec.Struct, frozen=True):
    """Where the measurements behind a plan were made; a plan is used only where they agree.

    Arguments:
        arithmetic: what else decides how results are rounded, as `lowtide.device.fingerprint.arithmetic` says it:
            implementations that were bit-equal there need not be elsewhere.
    """

    torch: str = ""
    device: str = ""
    threads: int = 0
    lowtide: str = ""
    arithmetic: str = ""


class Covers(msgspec.Struct, frozen=True):
    """What the budget counts and what it could not know."""

    inside: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


class GraphBreak(msgspec.Struct, frozen=True):
    """Where a model breaks into several graphs.

    Arguments:
        cause: in words.
        source: "model.py:88" with its folder; empty where it is not known.
        text: that line.
    """

    cause: str
    source: str = ""
    text: str = ""


class PlanRecord(msgspec.Struct, frozen=True, dict=True):
    """A plan as data: one joint timeline over one or more captured graphs, with its claims.

    Arguments:
        graph: profiled; for a bundle, the merged graph whose segments say which part they belong to.
        outside_B: bytes that live for the whole step and belong to no value of the graph (parameters that no
            captured graph reads, say). `budget_B` and `peak_B` include them.
        peak_B: predicted most bytes at once.
        time_s: predicted seconds of one step.
        keep_all_peak_B, keep_all_time_s: the same for the plan that keeps everything.
        budget_kind: "enforced", "capped" or "accounted".
        layout: where the schedule's allocations lie; None where nothing is enforced.
        reserve_B: of an enforced budget, bytes set aside for tiny blocks, worker threads and the caller's code
            between the segments.
        optimizer_B: temporary bytes of the optimizer's step, that the layout leaves free after the backward.
        state_B: of `outside_B`, the optimizers' state.
        libraries_B: of `outside_B`, workspaces that libraries of a GPU keep.
        graphs: how many captured graphs share the timeline.
        breaks: why they are several.
        fidelity: what is known of how the captured program's results compare with plain PyTorch's.
        begun_from: shapes of the plan from which the search began; empty where it began from nothing.
        numerics: how far results may be from plain PyTorch's.
        without: kinds of implementations, or families, that were left out.
        host_budget_B: host bytes for what is offloaded, host-resident values included; 0 for nothing, None for no
            limit.
        link_Bps: what each direction of the link is held to; None for what it can do.
        links: over which the plan offloads values, as it counts on them.
        host_peak_B: predicted most bytes on the host at once, host-resident values included.
        sent_B, fetched_B: bytes that one step copies to the host and back.
        stall_s: predicted seconds of one step in which nothing is computed.
        version: of the file format.
    """

    graph: Graph
    schedule: Schedule
    outcome: Outcome
    budget_B: int
    peak_B: int
    time_s: float
    keep_all_peak_B: int
    keep_all_time_s: float
    outside_B: int = 0
    budget_kind: str = "accounted"
    covers: Covers = Covers()
    environment: Environment = Environment()
    layout: Layout | None = None
    reserve_B: int = 0
    optimizer_B: int = 0
    state_B: int = 0
    libraries_B: int = 0
    graphs: int = 1
    breaks: tuple[GraphBreak, ...] = ()
    fidelity: Fidelity = Fidelity()
    begun_from: str = ""
    numerics: Numerics = Numerics.EXACT
    without: tuple[str, ...] = ()
    host_budget_B: int | None = 0
    link_Bps: float | None = None
    links: tuple[Link, ...] = ()
    host_peak_B: int = 0
    sent_B: int = 0
    fetched_B: int = 0
    stall_s: float = 0.0
    version: int = 1

    @property
    def machine(self) -> Machine | None:
        """What times the plan's copies; None for a plan that offloads nothing."""
        return Machine("here", links=self.links) if self.links else None

    @property
    def breakdown(self) -> BudgetBreakdown:
        """Where the bytes of the budget go under this plan."""
        live_B = 0 if self.layout is None else sum(block.size_B for block in self.layout.live_blocks)
        held_B = self.outside_B + self.graph.persistent_B
        planned_B = self.peak_B - held_B if self.layout is None else self.layout.height_B - live_B
        return BudgetBreakdown(
            asked_B=self.budget_B,
            persistent_B=self.graph.persistent_B,
            outside_B=self.outside_B - self.state_B - self.libraries_B,
            optimizer_B=self.state_B,
            libraries_B=self.libraries_B,
            reserve_B=self.reserve_B,
            live_B=live_B,
            planned_B=planned_B,
        )

    @property
    def fixed_B(self) -> int:
        """Bytes that no plan drops: parameters, buffers, inputs, optimizer state, and the reserve."""
        return self.outside_B + self.graph.persistent_B + self.reserve_B

    @property
    def reserved_B(self) -> int:
        """Predicted bytes reserved, holes included; the live peak where there is no layout."""
        return self.peak_B if self.layout is None else self.fixed_B + self.layout.height_B

    @property
    def floor_B(self) -> int:
        """Proved: no schedule lives in fewer bytes, with what lies outside the graph and what is set aside."""
        return self.outcome.floor_B + self.outside_B + self.graph.concurrent_B(self.reserve_B)

    @property
    def gap(self) -> float:
        """How much slower than the proved bound the plan may be: `time_s / bound_s - 1`."""
        return max(0.0, self.time_s / self.outcome.bound_s - 1.0) if self.outcome.bound_s > 0 else float("inf")

    @property
    def overhead(self) -> float:
        """Predicted extra time over keeping everything, as a fraction."""
        return self.time_s / self.keep_all_time_s - 1.0 if self.keep_all_time_s > 0 else 0.0

    @property
    def bound_overhead(self) -> float:
        """The least overhead that the bound allows, as a fraction; below 0 where other implementations are faster."""
        return self.outcome.bound_s / self.keep_all_time_s - 1.0 if self.keep_all_time_s > 0 else 0.0
