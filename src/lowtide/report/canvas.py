"""Addresses over time for the HTML page: the data that its script draws on a canvas, and what stands around it.

A canvas stays quick with tens of thousands of rectangles, where as many SVG elements do not. Units: `_B` bytes,
milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lowtide.report.markup import escape, script_data
from lowtide.report.rectangles import KINDS, AddressMap
from lowtide.units import format_B


@dataclass(slots=True)
class _Texts:
    """Each text once; the columns hold its index."""

    indices: dict[str, int] = field(default_factory=dict)

    def index(self, text: str) -> int:
        return self.indices.setdefault(text, len(self.indices))


def canvas_html(addresses: AddressMap) -> str:
    """The canvas with its legend, a sentence, and the choice of the axis."""
    present = {r.kind for r in addresses.rectangles}
    legend = "".join(
        f'<span><i style="background:var(--{kind})"></i>{escape(text)}</span>'
        for kind, text in KINDS.items()
        if kind in present
    )
    planned = sum(1 for r in addresses.rectangles if r.step is not None)
    told = (
        f"{planned:,} planned allocations below {format_B(addresses.height_B)}; what is persistent or set aside is "
        "stacked above. Point for names, drag to look closer, double-click for the whole."
    )
    return (
        f'<p class="legend dim">{legend}</p><p class="dim">{escape(told)} Across: '
        '<label><input type="radio" name="across" value="time" checked> time</label> '
        '<label><input type="radio" name="across" value="events"> allocations and releases</label></p>'
        '<div class="chart"><canvas id="addresses" role="img" aria-label="addresses over one step"></canvas>'
        '<div id="who" class="tip"></div></div><noscript><p>This picture needs a script.</p></noscript>'
    )


def canvas_data(addresses: AddressMap, budget_B: int, span_s: float) -> str:
    """JSON of the rectangles, column by column, safe inside a `<script>` element.

    Arguments:
        addresses: what to draw.
        budget_B: drawn as a line.
        span_s: where the time axis ends.
    """
    texts = _Texts()
    drawn = addresses.rectangles
    kinds = list(KINDS)
    data = {
        "ticks": addresses.ticks,
        "span_ms": span_s * 1e3,
        "top_B": max(addresses.top_B, budget_B),
        "budget_B": budget_B,
        "height_B": addresses.height_B,
        "clock_tick": [tick for tick, _ in addresses.clock],
        "clock_ms": [round(time_s * 1e3, 5) for _, time_s in addresses.clock],
        "kinds": kinds,
        "kind": [kinds.index(r.kind) for r in drawn],
        "start": [r.start for r in drawn],
        "stop": [r.stop for r in drawn],
        "offset_B": [r.offset_B for r in drawn],
        "size_B": [r.size_B for r in drawn],
        "step": [-1 if r.step is None else r.step for r in drawn],
        "name": [texts.index(r.name) for r in drawn],
        "op": [texts.index(r.op) for r in drawn],
        "place": [texts.index(r.place) for r in drawn],
        "texts": list(texts.indices),
    }
    return script_data(data)
