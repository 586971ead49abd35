"""Where the bytes of a budget go: the one account of them, printed the same wherever it is shown. Units: `_B` bytes."""

from __future__ import annotations

import msgspec

from lowtide.units import format_B


class BudgetBreakdown(msgspec.Struct, frozen=True):
    """The parts of a budget under a plan; with what is free they add up to it.

    Arguments:
        asked_B: the budget, once it is known what a share of the device or of the plain step comes to.
        persistent_B: parameters, buffers and inputs that the captured graphs read and that live on the device.
        outside_B: parameters and buffers that no captured graph reads, and what alignment adds to all of them.
        optimizer_B: the optimizers' state.
        libraries_B: workspaces that cuBLAS and other libraries of a GPU keep.
        reserve_B: set aside for tiny tensors, worker threads and the caller's code between the graphs.
        live_B: what tensors of earlier steps hold in the arena.
        planned_B: the plan's own allocations, holes between them and the optimizer's temporaries included.
    """

    asked_B: int
    persistent_B: int = 0
    outside_B: int = 0
    optimizer_B: int = 0
    libraries_B: int = 0
    reserve_B: int = 0
    live_B: int = 0
    planned_B: int = 0

    @property
    def free_B(self) -> int:
        """What nothing is planned to use; below 0 where a plan that nothing enforces takes more than was asked for."""
        return self.asked_B - sum(size_B for _, size_B in self._parts())

    def rows(self) -> tuple[tuple[str, int], ...]:
        """Labels and bytes of the parts that are not empty, in the order of the fields; they add up to the budget."""
        return tuple(row for row in (*self._parts(), ("free", self.free_B)) if row[1])

    def _parts(self) -> tuple[tuple[str, int], ...]:
        return (
            ("parameters, buffers, inputs", self.persistent_B),
            ("not read by a graph", self.outside_B),
            ("optimizer state", self.optimizer_B),
            ("library workspaces", self.libraries_B),
            ("reserve", self.reserve_B),
            ("held by earlier steps", self.live_B),
            ("planned", self.planned_B),
        )

    def __str__(self) -> str:
        return "; ".join(f"{format_B(size_B)} {label}" for label, size_B in self.rows())
