"""Places a backward anew whose planned addresses are taken.

A plan is about one step. Where other forwards ran before its backward, or the graph is retained, other tensors may lie
where the backward was to allocate: activations that another backward waits for, gradients that it left, what the graph
keeps. Then its allocations are placed anew around all of that, just before it runs.

Units: `_B` bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from lowtide.device.arena import Table
from lowtide.errors import InfeasibleBudget
from lowtide.ir.layout import LiveBlock
from lowtide.ir.plan import PlanRecord
from lowtide.ir.replay import replay_tables
from lowtide.placers.addresses import lay_out_segment
from lowtide.runtime.hard_budget import make_tables
from lowtide.units import format_B

_KEPT = 16  # a loop meets the same few situations again and again


class Reserves(Protocol):
    """Knows how much of the arena plans may use."""

    def whole_free_B(self, record: PlanRecord) -> int:
        """Where the part of the arena ends that a plan may use, with what it leaves free for those that wait."""

    def ask_for(self, record: PlanRecord, lacking_B: int) -> None:
        """Lets the plans of a graph leave more free from now on."""


@dataclass(eq=False)
class BackwardPlacements:
    """The places of one plan's backwards in other situations than planned.

    Arguments:
        record: the plan, with addresses.
        plans: knows how much of the arena it may use, and hears of how many bytes there were too few.
        device: torch device type of the arena.
    """

    record: PlanRecord
    plans: Reserves
    device: str
    _known: dict[tuple[int, tuple[LiveBlock, ...], frozenset[int]], tuple[Table, int]] = field(default_factory=dict)

    def around(
        self, segment: int, taken: tuple[LiveBlock, ...], passing: frozenset[int], retained: bool
    ) -> tuple[Table, int]:
        """Places a segment around what is taken.

        Arguments:
            segment: which one is about to run.
            taken: bytes that others hold, by address.
            passing: where earlier segments put what this one frees as planned.
            retained: whether the graph is kept, and so all that it was given.

        Returns: the table, and how high it reaches.

        Raises:
            InfeasibleBudget: if it does not fit.
        """
        free_B = self.plans.whole_free_B(self.record)
        below = tuple(LiveBlock(o.offset_B, min(o.size_B, free_B - o.offset_B)) for o in taken if o.offset_B < free_B)
        key = (segment, below, passing)
        known = self._known.get(key)
        if known is None:
            known = self._place(segment, below, passing, retained, free_B)
            while len(self._known) >= _KEPT:
                self._known.pop(next(iter(self._known)))
            self._known[key] = known
        return known

    def _place(
        self, segment: int, taken: tuple[LiveBlock, ...], passing: frozenset[int], retained: bool, free_B: int
    ) -> tuple[Table, int]:
        record = self.record
        assert record.layout is not None
        layout, height_B = lay_out_segment(
            record.schedule, record.layout, segment, taken=taken, passing=passing, capacity_B=free_B
        )
        if layout.height_B > free_B:
            self.plans.ask_for(self.record, layout.height_B - free_B)
            raise self._refusal(sum(o.size_B for o in taken), layout.height_B - free_B, retained)
        table = replay_tables(record.graph, record.schedule, layout)[segment]
        return make_tables([table], self.device)[0], height_B

    def _refusal(self, taken_B: int, lacking_B: int, retained: bool) -> InfeasibleBudget:
        budget_B = self.record.budget_B
        why = (
            "retain_graph=True keeps what it would free as it runs. Ask for all gradients in one backward"
            if retained
            else "forwards that still wait for their backwards, or gradients, lie where it was to allocate. Run each "
            "backward before the next forward, and evaluate under torch.no_grad()"
        )
        return InfeasibleBudget(
            f"a backward does not fit in the budget of {format_B(budget_B)}, of which {format_B(taken_B)} are taken: "
            f"{why}; or raise the budget by {format_B(lacking_B)} at least, to budget={budget_B + lacking_B}; or "
            "repeat the step: from now on its plan leaves that much free, if it can. No parameter has been changed.",
            budget_B=budget_B,
            smallest_B=budget_B + lacking_B,
        )
