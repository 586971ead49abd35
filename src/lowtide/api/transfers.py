"""`lowtide.transfers`: what was offloaded and prefetched, and what that cost, next to what the plan had said.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lowtide.api.memory import session_of
from lowtide.device.transfer_stats import Traffic, TransferStats
from lowtide.report.movement import Movement, movement
from lowtide.units import format_B, format_Bps, format_percent, format_s

_SHOWN = 8


@dataclass(frozen=True)
class Transfers:
    """Copies between device and host: observed, and predicted by the plan.

    Arguments:
        observed: since the copy engines were made.
        predicted: of one step of the plan that was used last.
        steps: of that plan, which are as many as the copies that were observed come to.
    """

    observed: TransferStats
    predicted: Movement
    steps: int

    def __str__(self) -> str:
        seen, steps = self.observed, max(self.steps, 1)
        lines = [
            _direction("to the host", seen.to_host),
            _direction("back", seen.from_host),
            f"stalls: {seen.stalls} in {self.steps} steps, {format_s(seen.stalled_s / steps)} a step; "
            f"the plan expects {format_s(self.predicted.stalled_s)}",
            f"host: {format_B(seen.host_peak_B)} of {format_B(seen.host_budget_B)} at most; "
            f"{format_B(seen.host_in_use_B)} now",
        ]
        if seen.host_runs:
            lines.append(f"on the host: {seen.host_runs} operators, {format_s(seen.host_busy_s)}")
        late = (f"  {s.value}: {s.count} times, {format_s(s.time_s)}" for s in seen.by_value[:_SHOWN])
        return "\n".join((*lines, *late))


def transfers(model: torch.nn.Module | None = None) -> Transfers:
    """Says what was copied between device and host so far, where compute waited, and what the plan had expected.

    Arguments:
        model: a fitted model; None for the only one, or else for the only one that was given to `torch.compile`.

    Returns: figures, and as text a few lines for people.

    Raises:
        LowtideError: as for `memory_stats`.
    """
    session = session_of(model)
    engines, record = session.budget_scope.engines, session.active_plans.latest
    seen = TransferStats() if engines is None else engines.stats()
    predicted = Movement() if record is None else movement(record)
    steps = round(seen.from_host.copies / predicted.fetched) if predicted.fetched else 0
    return Transfers(seen, predicted, steps)


def _direction(direction: str, seen: Traffic) -> str:
    share = "" if seen.share is None else f", {format_percent(seen.share)} of the link"
    rate = f"{format_Bps(seen.achieved_Bps)} while busy{share}"
    return f"{direction}: {seen.copies} copies, {format_B(seen.moved_B)}, {rate}"
