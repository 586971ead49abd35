"""A picture of a frontier, as a PNG: least time over budget, what is proved, and where other methods stand.

Units: `_B` bytes; overheads are fractions, drawn as percent.
"""

from __future__ import annotations

from collections import Counter
from itertools import cycle
from os import PathLike
from typing import Any

import numpy as np

from lowtide.ir.frontier import FrontierRecord
from lowtide.report.frontier_curves import Corner, Curves, curves_of, label_of, overhead_ticks, title_of
from lowtide.report.markup import picture_text
from lowtide.units import format_B

_PLAN, _BOUND, _FLOOR, _INK, _DIM = "#0a6ebd", "#5b6675", "#c0392b", "#1f2933", "#8a94a3"
_MARKERS = (
    ("s", "#e07b00"), ("D", "#3d8b37"), ("v", "#8e44ad"), ("P", "#b8860b"), ("X", "#c2185b"),
    ("^", "#00838f"), ("<", "#6d4c41"), (">", "#558b2f"), ("h", "#d84315"), ("p", "#455a64"),
)  # fmt: skip
_RING = 5.0  # points by which a marker grows for each that stands at the same place: all of them stay visible


def draw_frontier(record: FrontierRecord, path: str | PathLike[str], *, title: str | None = None) -> None:
    """Draws a frontier into a PNG file.

    Arguments:
        record: with at least one plan.
        path: of the file to write.
        title: above the picture; a sentence with the main numbers when None.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = curves_of(record)
    unit_B, unit = _unit(record.keep_all_B)
    figure = Figure(figsize=(11, 6.2), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_curves(axes, curves, unit_B)
    _draw_edges(axes, record, curves, unit_B)
    _draw_others(axes, curves, unit_B)
    _finish(axes, record, curves, unit_B, unit)
    axes.set_title(picture_text(title or title_of(record)), loc="left", fontsize=11, color=_INK, pad=10)
    figure.savefig(path, format="png")


def _draw_curves(axes: Any, curves: Curves, unit_B: int) -> None:
    for corners, colour, width, style, name in (
        (curves.plan, _PLAN, 1.8, "-", "lowtide"),
        (curves.bound, _BOUND, 1.4, (0, (4, 2)), "proved bound"),
    ):
        x, y = [b / unit_B for b, _ in corners], [100 * o for _, o in corners]
        axes.plot(x, y, color=colour, lw=width, ls=style, label=name, zorder=3)
    x, y = [b / unit_B for b, _ in curves.points], [100 * o for _, o in curves.points]
    axes.plot(x, y, color=_PLAN, lw=0, marker="o", ms=5, zorder=4, clip_on=False)
    x = [b / unit_B for b, _ in curves.gap]
    axes.fill(x, [100 * o for _, o in curves.gap], color=_PLAN, alpha=0.14, lw=0, label="between the two")


def _draw_others(axes: Any, curves: Curves, unit_B: int) -> None:
    taken: Counter[Corner] = Counter()
    for (marker, colour), marks in zip(cycle(_MARKERS), curves.others, strict=False):
        label: str | None = picture_text(label_of(marks, curves.top))
        for rings in sorted({taken[corner] for corner in marks.points}):
            here = [corner for corner in marks.points if taken[corner] == rings]
            axes.plot(
                [b / unit_B for b, _ in here], [100 * min(o, curves.top) for _, o in here], color=colour, lw=0,
                marker=marker, ms=6.5 + _RING * rings, mfc="none" if rings else colour,
                mec=colour if rings else "white", mew=1.4 if rings else 0.6, clip_on=False, zorder=5, label=label,
            )  # fmt: skip
            label = None
        taken.update(marks.points)


def _draw_edges(axes: Any, record: FrontierRecord, curves: Curves, unit_B: int) -> None:
    """The proved floor, what lies below it, what is not known above it, and keep-all."""
    low, high = (b / unit_B for b in curves.unknown)
    axes.axvspan(curves.left_B / unit_B, low, color=_FLOOR, alpha=0.10, lw=0, label="proved impossible")
    if high > low:
        axes.axvspan(low, high, color=_DIM, alpha=0.16, lw=0, label="no plan known")
    lines = ((record.floor_B, _FLOOR, "floor", "left", 4), (record.keep_all_B, _DIM, "keep all", "right", -4))
    for size_B, colour, name, side, shift in lines:
        axes.axvline(size_B / unit_B, color=colour, lw=1.2, ls=":", zorder=2)
        axes.annotate(
            f"{name} {format_B(size_B)}", (size_B / unit_B, 1.0), xycoords=("data", "axes fraction"),
            xytext=(shift, -6), textcoords="offset points", ha=side, va="top", fontsize=9, color=colour, weight="bold",
            bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5}, zorder=6,
        )  # fmt: skip


def _finish(axes: Any, record: FrontierRecord, curves: Curves, unit_B: int, unit: str) -> None:
    whole = record.keep_all_B / unit_B
    axes.set_xlim(curves.left_B / unit_B, curves.right_B / unit_B)
    axes.set_yscale("function", functions=(_root, _square))
    axes.set_yticks([100 * tick for tick in overhead_ticks(curves.top)])
    axes.yaxis.set_major_formatter(lambda percent, _: f"{percent:g}")
    axes.minorticks_off()
    axes.set_ylim(0, 100 * curves.top)
    axes.set_xlabel(f"budget, {unit}", color=_INK)
    axes.set_ylabel("extra time over keeping everything, % (square-root scale)", color=_INK)
    shares = axes.secondary_xaxis("top", functions=(lambda x: 100 * x / whole, lambda p: p * whole / 100))
    shares.set_xlabel("budget, % of what keeping everything needs", color=_INK)
    axes.grid(color="#d9dee5", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines["right"].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.11), ncols=5, frameon=False, fontsize=9)


def _root(percents: Any) -> Any:
    return np.sqrt(np.maximum(percents, 0.0))


def _square(heights: Any) -> Any:
    return np.square(heights)


def _unit(size_B: int) -> tuple[int, str]:
    for unit_B, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size_B >= 2 * unit_B:
            return unit_B, name
    return 1, "bytes"
