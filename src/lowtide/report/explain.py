"""Why each value that matters is where it is: size, fate, reason, cost and the line of the user's source.

Nothing about the plan is decided or computed anew here; the schedule is read and put into words.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lowtide.ir.graph import Graph, Role
from lowtide.ir.plan import PlanRecord
from lowtide.ir.schedule import DEVICE, Boundary
from lowtide.report.answer import answer
from lowtide.report.fate import Fate, fates
from lowtide.report.headline import Headline, headline, headline_rows
from lowtide.report.implementations import Implementations, Site, implementations
from lowtide.report.listing import Line, cut, listing, place, shortened
from lowtide.report.movement import movement
from lowtide.report.terminal import Terminal
from lowtide.units import format_B, format_s

_SHORT = 0.1  # of the schedule, and at least _FEW steps: what is live for less, inside one segment, is short-lived
_FEW = 4
_INDENT = 2
_LEAST_OF_SOURCE = 20  # characters of a source line; fewer say nothing


@dataclass(frozen=True, slots=True)
class Row:
    """One value that matters.

    Arguments:
        name: of the value in the captured graph.
        fate: "kept", "short-lived", "given", "handed over", "rematerialised n times", "replayed n times",
            "offloaded n times" or "lives on the host".
        because: why, in a sentence without a verb to spare.
        cost_s: seconds that the plan pays to recompute or fetch it, waits for its copies included; 0 for what it keeps.
        module: qualified name of the submodule that made it.
        source: "model.py:88", and `text` is that line.
    """

    name: str
    size_B: int
    fate: str
    because: str
    cost_s: float
    module: str
    source: str
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A plan in words.

    Arguments:
        rows: the values that matter, most bytes first, at most `top` of them.
        matter: how many there are in all.
        matter_B: bytes of all of them together, those at the peak and those recomputed or fetched.
        implementations: what each call site runs, where that is not what the program runs.
        sites: of those the first, at most as many as rows.
    """

    headline: Headline
    rows: tuple[Row, ...]
    matter: int
    matter_B: int
    implementations: Implementations
    sites: tuple[Site, ...] = ()


def explain(record: PlanRecord, top: int = 20) -> Explanation:
    """Explains a plan, value by value.

    A value matters when the device holds it at the peak, or when the plan recomputes or fetches it. Values that live on
    the device for the whole step whatever the plan are in the headline's persistent bytes instead.

    Arguments:
        record: a legal plan.
        top: most rows to return, at least 0.

    Returns:
        The headline and the rows, by size, then in order of appearance.
    """
    head, graph, chosen = headline(record), record.graph, implementations(record)
    stalls_s = dict(movement(record).stalls_s)
    matter = [
        fate
        for fate in fates(graph, record.schedule)
        if not (graph.values[fate.value].persistent and graph.values[fate.value].memory == DEVICE)
        and graph.values[fate.value].size_B > 0
        and (fate.recomputations or fate.fetches or fate.covering(head.peak.step))
    ]
    matter.sort(key=lambda fate: (-graph.values[fate.value].size_B, fate.value))
    cuts = tuple(i for i, step in enumerate(record.schedule.steps) if isinstance(step, Boundary))
    return Explanation(
        headline=head,
        rows=tuple(_row(graph, fate, head, cuts, stalls_s.get(fate.value, 0.0)) for fate in matter[: max(top, 0)]),
        matter=len(matter),
        matter_B=sum(graph.values[fate.value].size_B for fate in matter),
        implementations=chosen,
        sites=chosen.sites[: max(top, 0)],
    )


def _row(graph: Graph, fate: Fate, head: Headline, cuts: tuple[int, ...], stalled_s: float) -> Row:
    value = graph.values[fate.value]
    producers = graph.producers[fate.value]
    origin = graph.recipes[producers[0]].origin if producers else None
    name, because = _verdict(graph, fate, head, cuts)
    return Row(
        name=value.name,
        size_B=value.size_B,
        fate=name,
        because=because,
        cost_s=fate.paid_s + stalled_s,
        module=origin.module if origin else "",
        source=origin.source if origin else "",
        text=origin.text.strip() if origin else "",
    )


def _verdict(graph: Graph, fate: Fate, head: Headline, cuts: tuple[int, ...]) -> tuple[str, str]:
    """The fate's name and the reason for it."""
    value, peak = graph.values[fate.value], head.peak.step
    if value.persistent and value.memory != DEVICE:
        return "lives on the host", f"comes {_times(fate.fetches)}; {_away(fate, peak, 'copied')}"
    if fate.fetches:
        return f"offloaded {_times(fate.fetches)}", _away(fate, peak, "copied back")
    if fate.recomputations:
        verb = "replayed" if fate.replays == len(fate.recomputations) else "rematerialised"
        return f"{verb} {_times(len(fate.recomputations))}", _away(fate, peak, f"{format_s(fate.redo_s)} to redo")
    lifetime = fate.covering(peak) or (0, 0)
    held = f"held across {_steps(*lifetime)}"
    if value.arrives is not None:
        return "given", f"the caller gave it; {held}; peak is step {peak}"
    if value.leaves is not None and value.role in (Role.OUTPUT, Role.UPDATE, Role.GRADIENT):
        return "handed over", f"the caller gets it after {graph.segments[value.leaves].name}; {held}"
    redo = f"{format_s(fate.redo_s)} to redo" if fate.redo_s > 0 else "cannot run twice"
    crosses = any(lifetime[0] < cut < lifetime[1] for cut in cuts)
    if not crosses and lifetime[1] - lifetime[0] < max(_SHORT * head.steps, _FEW):
        return "short-lived", f"made and used up in {_steps(*lifetime)}, around the peak at step {peak}"
    return "kept", f"{redo}, {held}; peak is step {peak}"


def _away(fate: Fate, peak: int, price: str) -> str:
    """Where a value that was dropped and restored was absent, and whether that lowered the peak."""
    spared = fate.absence(peak)
    gap = spared or fate.longest_absence()
    if gap is None:
        return f"{price}, first made only in passing"
    where = f" and so at the peak, step {peak}" if spared else f"; peak is step {peak}"
    return f"{price}, away in {_steps(*gap)}{where}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _steps(start: int, stop: int) -> str:
    return f"steps {start}-{stop - 1}" if stop - start > 1 else f"step {start}"


def renderable(explanation: Explanation, width: int, verbose: bool = False) -> RenderableType:
    """The explanation as a rich renderable: five lines that answer, then a row per value with its place under it.

    Arguments:
        width: columns of the page.
        verbose: all of the headline, the reason of every fate, and the implementations as well.
    """
    head = explanation.headline
    parts: list[RenderableType] = [labelled(answer(head), width)]
    if verbose:
        parts += [Text(), labelled(headline_rows(head), width)]
    if explanation.rows:
        parts += [Text(), _values(explanation.rows, width, verbose)]
    count = f"{len(explanation.rows)} of {explanation.matter} values that matter"
    parts.append(Text(f"{count}, {format_B(explanation.matter_B)} in all", style="dim"))
    if verbose and explanation.sites:
        parts += [Text(), _sites(explanation.sites, width), Text(sites_shown(explanation), style="dim")]
    if not verbose:
        parts.append(Text("--verbose (in Python verbose=True): where the bytes go, why, and what is proved", "dim"))
    return Group(*parts)


def _values(rows: Sequence[Row], width: int, verbose: bool) -> Text:
    """The values that matter, each with its place and source line under it."""
    lines = [
        Line(
            cells=(row.name, format_B(row.size_B), row.fate, format_s(row.cost_s) if row.cost_s > 0 else ""),
            notes=(_from(row, width - _INDENT), row.because if verbose else ""),
            style=_style(row.fate),
        )
        for row in rows
    ]
    return listing(("value", "bytes", "fate", "cost"), lines, width, right=(1, 3), styled=2)


def _from(row: Row, width: int) -> str:
    """The submodule, the source line's place, and as much of the line as there is space for."""
    where = place(row.module, row.source, width)
    left = width - cell_len(where) - 2
    return f"{where}  {cut(row.text, left)}" if row.text and left >= _LEAST_OF_SOURCE else where


def _sites(sites: Sequence[Site], width: int) -> Text:
    """Call sites that run something else than the program, each with its place under it."""
    lines = [
        Line(
            cells=(site.what, site.candidate, site.numerics.value, spared(site), costs(site)),
            notes=(place(site.module, site.source, width - _INDENT),),
        )
        for site in sites
    ]
    return listing(("operator", "implementation", "results", "spares", "costs"), lines, width, right=(4,))


def sites_shown(explanation: Explanation) -> str:
    """How many of the call sites are shown."""
    return f"{len(explanation.sites)} of {len(explanation.implementations.sites)} call sites that run something else"


def spared(site: Site) -> str:
    """The bytes that an implementation spares, in words."""
    parts = [(site.spared_B, ""), (site.at_once_B, " while it runs")]
    told = [f"{'-' if size_B < 0 else ''}{format_B(abs(size_B))}{when}" for size_B, when in parts if size_B]
    return ", ".join(told)


def costs(site: Site) -> str:
    """The extra seconds of an implementation; less than nothing where it is faster."""
    return f"{'-' if site.cost_s < 0 else ''}{format_s(abs(site.cost_s))}" if site.cost_s else ""


def labelled(rows: Sequence[tuple[str, str]], width: int) -> Table:
    """Labels and texts as a rich table; a text that is longer than the line goes on under itself.

    Arguments:
        width: columns of the page; a word that is longer than a line is shortened in its middle.
    """
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    left = width - max(cell_len(label) for label, _ in rows) - 2
    for label, text in rows:
        words = "".join(shortened(part, left) for part in re.split(r"(\s+)", text))
        table.add_row(label, Text(words))
    return table


def _style(fate: str) -> str:
    if fate.startswith(("rematerialised", "replayed", "moved", "lives")):
        return "yellow"
    return "green" if fate == "kept" else ""


def render(explanation: Explanation, width: int = 100, verbose: bool = False) -> str:
    """The explanation as plain text.

    Arguments:
        width: columns of the page.
        verbose: see `renderable`.
    """
    page = StringIO()
    console = Terminal(file=page, width=width, color_system=None, legacy_windows=False)
    console.print(renderable(explanation, width, verbose))
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())
