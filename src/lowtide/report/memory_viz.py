"""What lies in the arena, and the plan's allocations in order, in the form that torch's memory viewer reads.

The form is that of `torch.cuda.memory._snapshot`: segments with their blocks, and a trace of events per device. The
viewer at pytorch.org/memory_viz and `torch.cuda._memory_viz` open it; it is a pickle of protocol 4, which the viewer's
own unpickler knows.

Units: `_B` bytes; times in the file are microseconds.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from lowtide.ir.plan import PlanRecord
from lowtide.printable import printable
from lowtide.report.rectangles import Rectangle, address_map

_PROTOCOL = 4
_START = 1 << 32  # of the arena's addresses in the file; the viewer takes 0 for none
_PLACE = re.compile(r"(?P<op>.*?)(?: at | )(?P<file>[^ ]+):(?P<line>\d+)")


class Holding(msgspec.Struct, frozen=True):
    """Some bytes of the arena and who asked for them.

    Arguments:
        address_B: from the arena's start.
        size_B: as requested.
        holder: the operator with its source line, or the stretch of the caller's code.
    """

    address_B: int
    size_B: int
    holder: str


def write_snapshot(
    holdings: Sequence[Holding], capacity_B: int, plan: PlanRecord | None, path: str | PathLike[str]
) -> None:
    """Writes what the arena holds and what the plan will allocate.

    Arguments:
        holdings: by address, without an overlap.
        capacity_B: of the arena.
        plan: whose allocations are the trace; None for none.
        path: of the file to write; an existing one is replaced.

    Raises:
        OSError: if it cannot be written.
    """
    Path(path).write_bytes(pickle.dumps(snapshot_of(holdings, capacity_B, plan), protocol=_PROTOCOL))


def snapshot_of(holdings: Sequence[Holding], capacity_B: int, plan: PlanRecord | None) -> dict[str, Any]:
    """The contents of the file, see `write_snapshot`."""
    held_B = sum(holding.size_B for holding in holdings)
    segment = {
        "address": _START,
        "total_size": capacity_B,
        "allocated_size": held_B,
        "active_size": held_B,
        "requested_size": held_B,
        "device": 0,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [_frame("lowtide's arena")],
        "blocks": list(_blocks(holdings, capacity_B)),
    }
    events = [] if plan is None else _events(plan)
    return {"segments": [segment], "device_traces": [events], "allocator_settings": {}, "external_annotations": []}


def _blocks(holdings: Iterable[Holding], capacity_B: int) -> Iterable[dict[str, Any]]:
    """Blocks from end to end: held ones, and the holes between them."""
    end_B = 0
    for holding in holdings:
        if holding.address_B > end_B:
            yield _block(end_B, holding.address_B - end_B, "")
        yield _block(holding.address_B, holding.size_B, holding.holder)
        end_B = holding.address_B + holding.size_B
    if capacity_B > end_B:
        yield _block(end_B, capacity_B - end_B, "")


def _block(address_B: int, size_B: int, holder: str) -> dict[str, Any]:
    return {
        "address": _START + address_B,
        "size": size_B,
        "requested_size": size_B if holder else 0,
        "state": "active_allocated" if holder else "inactive",
        "frames": [_frame(holder)] if holder else [],
    }


def _events(plan: PlanRecord) -> list[dict[str, Any]]:
    """The allocations and releases of one step under the plan, in order; empty where the plan has no addresses."""
    addresses = address_map(plan)
    if addresses is None:
        return []
    order: list[tuple[int, int, Rectangle]] = []
    for rectangle in addresses.rectangles:
        order += [(rectangle.start, 1, rectangle), (rectangle.stop, 0, rectangle)]
    order.sort(key=lambda event: event[:2])  # at one tick releases come first
    events = [_event("segment_alloc", 0, addresses.top_B, 0.0, "lowtide's arena")]
    for tick, allocates, held in order:
        place = f"{held.op} {held.place}".strip() or held.name
        actions = ("alloc",) if allocates else ("free_requested", "free_completed")
        if allocates or tick < addresses.ticks:
            time_s = addresses.time_s(tick)
            events += [_event(action, held.offset_B, held.size_B, time_s, place, held.name) for action in actions]
    return events


def _event(action: str, address_B: int, size_B: int, time_s: float, place: str, name: str = "") -> dict[str, Any]:
    frames = [_frame(place), *([{"filename": "", "line": 0, "name": printable(name)}] if name else [])]
    return {
        "action": action,
        "addr": _START + address_B,
        "size": size_B,
        "stream": 0,
        "time_us": round(time_s * 1e6),
        "frames": frames,
    }


def _frame(place: str) -> dict[str, Any]:
    """A line of a stack: `aten.mm at net.py:13` is the operator, in that file and line."""
    found = _PLACE.fullmatch(place.partition(" (")[0])
    if found is None:
        return {"filename": "", "line": 0, "name": printable(place)}
    return {"filename": printable(found["file"]), "line": int(found["line"]), "name": printable(found["op"])}
