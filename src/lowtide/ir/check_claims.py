"""Whether what a saved plan says of itself makes sense, before anything is computed from it.

A schedule may be legal (`check.py`) and its file claim a peak of minus one byte, a bound that is no number, or blocks
of memory that the schedule never allocates. Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

import math

from lowtide.errors import IllegalPlan
from lowtide.ir.check_graph import MOST_s
from lowtide.ir.graph import Graph
from lowtide.ir.layout import ALIGNMENT_B, Layout
from lowtide.ir.machine import Link
from lowtide.ir.plan import Outcome, PlanRecord
from lowtide.ir.schedule import DEVICE, HOST
from lowtide.ir.sequence import blocks_of

KINDS = ("enforced", "capped", "accounted")
_MOST = 2**63
_MOST_ALIGNMENT_B = 2**21  # of a huge page


def check_claims(record: PlanRecord) -> None:
    """Checks every number that a plan gives besides its graph and its schedule.

    Arguments:
        record: from a file; its graph and its schedule are checked elsewhere.

    Raises:
        IllegalPlan: names the first claim that cannot be.
    """
    for name in ("budget_B", "peak_B", "keep_all_peak_B", "outside_B", "reserve_B", "optimizer_B", "host_peak_B"):
        _whole(name, getattr(record, name))
    for name in ("sent_B", "fetched_B", "graphs"):
        _whole(name, getattr(record, name))
    for name in ("time_s", "keep_all_time_s", "stall_s"):
        _number(name, getattr(record, name))
    if record.host_budget_B is not None:
        _whole("host_budget_B", record.host_budget_B)
    if record.link_Bps is not None and not record.link_Bps > 0:
        raise _nonsense("link_Bps", record.link_Bps)
    if record.budget_kind not in KINDS:
        raise _nonsense("budget_kind", record.budget_kind)
    for link in record.links:
        check_link(link)
    _outcome(record.outcome, record.graph)
    if record.layout is not None:
        _layout(record.layout)


def check_blocks(record: PlanRecord) -> None:
    """Checks that a plan's layout is one of the allocations that its schedule makes.

    Raises:
        IllegalPlan: if it has others.
    """
    layout = record.layout
    if layout is not None and layout.blocks != blocks_of(record.graph, record.schedule, layout.small_B):
        raise IllegalPlan("the layout has other allocations, or other lifetimes, than the schedule makes")


def check_link(link: Link) -> None:
    """Checks that a link leads from the device to the host or back, at a rate.

    Raises:
        IllegalPlan: if it does not.
    """
    if {link.source, link.target} != {DEVICE, HOST}:
        raise _nonsense("a link", f"from {link.source!r} to {link.target!r}")
    if link.engine != ("to_host" if link.source == DEVICE else "from_host"):
        raise _nonsense("a link's engine", link.engine)
    if not link.rate_Bps > 0:
        raise _nonsense("a link's rate", link.rate_Bps)
    _number("a link's latency", link.latency_s)


def _outcome(outcome: Outcome, graph: Graph) -> None:
    _number("bound_s", outcome.bound_s)
    _whole("floor_B", outcome.floor_B)
    if outcome.smallest_B is not None:
        _whole("smallest_B", outcome.smallest_B)
    for recipe in outcome.floor_recipes:
        if not 0 <= recipe < len(graph.recipes):
            raise _nonsense("floor_recipes", recipe)
    for value in outcome.hosted:
        if not 0 <= value < len(graph.values):
            raise _nonsense("hosted", value)


def _layout(layout: Layout) -> None:
    _whole("the layout's height", layout.height_B)
    _whole("the layout's least height", layout.live_B)
    _whole("the layout's smallest allocation", layout.small_B)
    alignment_B = layout.alignment_B
    if not ALIGNMENT_B <= alignment_B <= _MOST_ALIGNMENT_B or alignment_B & (alignment_B - 1):
        raise _nonsense("the layout's alignment", alignment_B)
    for live_block in layout.live_blocks:
        _whole("a live block's address", live_block.offset_B)
        _whole("a live block's size", live_block.size_B)


def _whole(name: str, number: int) -> None:
    if not 0 <= number < _MOST:
        raise _nonsense(name, number)


def _number(name: str, seconds_s: float) -> None:
    if not (math.isfinite(seconds_s) and 0 <= seconds_s <= 4 * MOST_s):
        raise _nonsense(name, seconds_s)


def _nonsense(name: str, claim: object) -> IllegalPlan:
    return IllegalPlan(f"{name} is {claim!r}, which cannot be")
