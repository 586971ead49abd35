"""A picture of memory over one step, as a PNG: what keeping all needs, what the plan needs, what was observed.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from os import PathLike
from typing import Any

from lowtide.ir.plan import PlanRecord
from lowtide.report.markup import picture_text
from lowtide.report.timeline import MemoryCurve, keep_all_curve, plan_curve
from lowtide.units import format_B, format_percent

Observed = Sequence[tuple[float, int]]
"""An allocator's log: (order of the event, bytes live after it)."""

_PLAIN, _PLAN, _BUDGET, _INK = "#8a94a3", "#0a6ebd", "#c0392b", "#1f2933"
_SEEN = ("#e07b00", "#3d8b37", "#8e44ad")


def draw_memory(
    record: PlanRecord,
    path: str | PathLike[str],
    *,
    observed: Mapping[str, Observed] | None = None,
    title: str | None = None,
) -> None:
    """Draws memory over one step into a PNG file.

    Arguments:
        record: a legal plan.
        path: of the file to write.
        observed: per legend entry, an allocator's log over one step, absolute bytes. An entry whose name starts
            with "plain" is laid along the keep-all curve, any other along the plan's.
        title: above the picture; a sentence with the main numbers when None.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    plan, plain = plan_curve(record), keep_all_curve(record)
    unit_B, unit = _unit(max(plan.peak_B, plain.peak_B, record.budget_B))
    figure = Figure(figsize=(11, 5.2), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_curve(axes, plain, unit_B, _PLAIN, 0.16)
    _draw_curve(axes, plan, unit_B, _PLAN, 0.22)
    for colour, (name, log) in zip(cycle(_SEEN), (observed or {}).items(), strict=False):
        _draw_observed(axes, name, log, plain if name.startswith("plain") else plan, unit_B, colour)
    axes.axhline(record.budget_B / unit_B, color=_BUDGET, lw=1.6, ls=(0, (6, 3)), zorder=4)
    axes.axhspan(0, plan.persistent_B / unit_B, color="#5b6675", alpha=0.18, lw=0, label="persistent")
    _draw_segments(axes, plan)
    _label_budget(axes, record, unit_B, max(plan.time_s, plain.time_s))
    _finish(axes, unit, picture_text(title or _title(record)), max(plan.time_s, plain.time_s))
    figure.savefig(path, format="png")


def _draw_curve(axes: Any, curve: MemoryCurve, unit_B: int, colour: str, alpha: float) -> None:
    points = [p for p in curve.points if p.stop_s > p.start_s] or list(curve.points)
    times_ms = [t * 1e3 for p in points for t in (p.start_s, p.stop_s)]
    heights = [p.peak_B / unit_B for p in points for _ in (0, 1)]
    axes.fill_between(times_ms, heights, color=colour, alpha=alpha, lw=0)
    axes.plot(times_ms, heights, color=colour, lw=1.5, label=f"{curve.name} ({format_B(curve.peak_B)})")


def _draw_observed(axes: Any, name: str, log: Observed, along: MemoryCurve, unit_B: int, colour: str) -> None:
    if not log:
        return
    first, last = log[0][0], log[-1][0]
    span = (last - first) or 1.0
    times_ms = [along.time_at((order - first) / span) * 1e3 for order, _ in log]
    top_B = max(size_B for _, size_B in log)
    heights = [size_B / unit_B for _, size_B in log]
    label = f"{name} ({format_B(top_B)})"
    axes.plot(times_ms, heights, color=colour, lw=0.9, drawstyle="steps-post", label=label, zorder=3)


def _draw_segments(axes: Any, plan: MemoryCurve) -> None:
    for stretch in plan.stretches:
        if stretch.start_s > 0:
            axes.axvline(stretch.start_s * 1e3, color=_INK, lw=0.8, ls=":")
        middle = (stretch.start_s + stretch.stop_s) / 2 * 1e3
        axes.annotate(
            picture_text(stretch.name), (middle, 0), xycoords=("data", "axes fraction"), xytext=(0, 5),
            textcoords="offset points",
            ha="center", va="bottom", fontsize=9, color=_INK,
        )  # fmt: skip


def _label_budget(axes: Any, record: PlanRecord, unit_B: int, time_s: float) -> None:
    axes.annotate(
        f"budget {format_B(record.budget_B)}", (time_s * 1e3, record.budget_B / unit_B),
        xytext=(-4, 4), textcoords="offset points", ha="right", va="bottom", fontsize=9, color=_BUDGET, weight="bold",
    )  # fmt: skip


def _finish(axes: Any, unit: str, title: str, time_s: float) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=_INK)
    axes.set_xlabel("predicted time of one step, ms", color=_INK)
    axes.set_ylabel(unit, color=_INK)
    axes.set_xlim(0, max(time_s * 1e3, 1e-6))
    axes.set_ylim(bottom=0)
    axes.margins(y=0.12)
    axes.autoscale(axis="y")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#d9dee5", lw=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.12), ncols=3, frameon=False, fontsize=9)


def _title(record: PlanRecord) -> str:
    name = f"{record.graph.name}: " if record.graph.name else ""
    share = record.peak_B / record.keep_all_peak_B if record.keep_all_peak_B else 1.0
    sizes = f"{format_B(record.peak_B)} instead of {format_B(record.keep_all_peak_B)} ({share:.0%})"
    return f"{name}{sizes}, {format_percent(record.overhead)} more time"


def _unit(size_B: int) -> tuple[int, str]:
    for unit_B, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size_B >= 2 * unit_B:
            return unit_B, name
    return 1, "bytes"
