"""How far planning is, on one line that is overwritten."""

from __future__ import annotations

from lowtide.planners.base import Progress
from lowtide.units import format_percent


def line(progress: Progress) -> str:
    """The stage, the seconds, and what the best plan and the bound cost over keeping everything."""
    told = [f"planning: {progress.stage}, {progress.elapsed_s:.1f} s"]
    plain_s, bound_s = progress.plain_s, progress.bound_s
    if plain_s > 0:
        best = "no plan yet" if progress.time_s is None else f"overhead {format_percent(progress.time_s / plain_s - 1)}"
        told.append(f"{best}, bound {format_percent(max(0.0, bound_s / plain_s - 1))}")
    if progress.time_s is not None and bound_s > 0:
        told.append(f"gap {format_percent(max(0.0, progress.time_s / bound_s - 1))}")
    return ", ".join(told)
