"""Addresses over time as a PNG: every allocation of a plan as a rectangle, coloured by what it holds.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

from lowtide.errors import PlanError
from lowtide.ir.plan import PlanRecord
from lowtide.report.markup import picture_text
from lowtide.report.rectangles import KINDS, AddressMap, address_map
from lowtide.units import format_B

_COLOURS = {
    "home": "#9aa3af",
    "activation": "#4f8fd6",
    "again": "#e07b00",
    "backward": "#8a6fc9",
    "gradient": "#2f9e6e",
    "temporary": "#d8b53c",
    "outside": "#ccd2d9",
}
_BUDGET, _INK = "#c0392b", "#1f2933"


def draw_addresses(record: PlanRecord, path: str | PathLike[str], *, title: str | None = None) -> None:
    """Draws who holds which bytes when into a PNG file.

    Arguments:
        record: a legal plan with addresses.
        path: of the file to write.
        title: above the picture; a sentence with the main numbers when None.

    Raises:
        PlanError: for a plan without addresses.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    addresses = address_map(record)
    if addresses is None:
        raise PlanError("this plan has no addresses: make it with a budget that is enforced")
    figure = Figure(figsize=(11, 6.2), dpi=130, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    top_B = max(addresses.top_B, record.budget_B)
    unit_B, unit = next(((u, n) for u, n in _UNITS if top_B >= 2 * u), (1, "bytes"))
    for kind in KINDS:
        _draw_kind(axes, addresses, kind, unit_B)
    axes.axhline(record.budget_B / unit_B, color=_BUDGET, lw=1.6, ls=(0, (6, 3)), zorder=4)
    axes.set_title(picture_text(title or _title(record, addresses)), loc="left", fontsize=11, color=_INK)
    axes.set_xlabel("predicted time of one step, ms", color=_INK)
    axes.set_ylabel(f"address, {unit}", color=_INK)
    axes.set_xlim(0, max(addresses.clock[-1][1] * 1e3, 1e-6))
    axes.set_ylim(0, top_B * 1.04 / unit_B)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.1), ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, format="png")


_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def _draw_kind(axes: Any, addresses: AddressMap, kind: str, unit_B: int) -> None:
    from matplotlib.collections import PolyCollection

    corners = []
    for r in addresses.rectangles:
        if r.kind == kind:
            left, right = addresses.time_s(r.start) * 1e3, addresses.time_s(r.stop) * 1e3
            bottom, top = r.offset_B / unit_B, (r.offset_B + r.size_B) / unit_B
            corners.append([(left, bottom), (right, bottom), (right, top), (left, top)])
    if corners:
        axes.add_collection(
            PolyCollection(corners, facecolor=_COLOURS[kind], edgecolor="white", lw=0.25, label=KINDS[kind])
        )


def _title(record: PlanRecord, addresses: AddressMap) -> str:
    name = f"{record.graph.name}: " if record.graph.name else ""
    planned = sum(1 for r in addresses.rectangles if r.step is not None)
    packing = record.layout.packing if record.layout is not None else 1.0
    height = f"{format_B(addresses.height_B)} high, {packing:.3f} x the most bytes at once"
    return f"{name}{planned:,} allocations, {height}, budget {format_B(record.budget_B)}"
