"""Schedule -> Python source: one function per segment, one statement per step.

One name per value, operators called directly, results of several unpacked at once, `del` exactly where the
schedule drops. Nothing is looked up while it runs. Views are made in the argument list, so that they die with the
call. Stretches that come several times, layers, are written once, as functions of their own (`routines.py`). Where
allocations have planned addresses, every run says its number first, so that a departure from the plan costs one
operator and not the rest of the segment.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from lowtide.device import arena
from lowtide.ir.call import Read
from lowtide.ir.graph import Graph
from lowtide.ir.interface import Interface, Slot, filled
from lowtide.ir.schedule import Boundary, Drop, Run, Schedule, Step
from lowtide.runtime.routines import write_steps
from lowtide.runtime.writer import Writer

Segment = Callable[[list[Any]], tuple[Any, ...]]
_SERIAL = itertools.count(1)
_ABREAST = 16  # names in a line


def carried_into(graph: Graph, steps: Sequence[Step], segment: int) -> set[int]:
    """Values that a segment uses from before its boundary: read or handed over there, not made or given there."""
    made = {v.id for v in graph.values if v.arrives == segment}
    used: set[int] = set()
    for step in steps:
        if isinstance(step, Run):
            recipe = graph.recipes[step.recipe]
            used.update(v for v in recipe.read_values if v not in made)
            made.update(step.keep)
    used.update(v.id for v in graph.values if v.leaves == segment and v.id not in made)
    return used


def split(schedule: Schedule, segments: int) -> list[list[Step]]:
    """The steps of each segment, boundaries left out."""
    parts: list[list[Step]] = [[] for _ in range(segments)]
    here = 0
    for step in schedule.steps:
        if isinstance(step, Boundary):
            here = step.segment
        else:
            parts[here].append(step)
    return parts


def generate(
    graph: Graph,
    schedule: Schedule,
    interfaces: Sequence[Interface],
    held: Sequence[Any],
    token: torch.Tensor,
    empty: torch.Tensor,
    *,
    marked: bool = False,
) -> tuple[Segment, ...]:
    """Compiles one function per segment.

    Arguments:
        interfaces: per segment, what the caller passes and expects.
        held: arguments without a text form.
        token: the tensor that names the plan.
        empty: what fills unused slots.
        marked: whether every run says its number to the arena.

    Returns:
        Functions that take a boxed list, which they empty, and return a tuple.
    """
    parts = split(schedule, len(graph.segments))
    carried = [carried_into(graph, part, i) for i, part in enumerate(parts)]
    functions = []
    interfaces = filled(tuple(interfaces), carried[-1])
    for index, (steps, interface) in enumerate(zip(parts, interfaces, strict=True)):
        later: set[int] = set().union(*carried[index + 1 :]) if index + 1 < len(parts) else set()
        writer = Writer(graph, held)
        writer.scope |= {"_token": token, "_empty": empty, **{f"v{v}": held[at] for v, at in interface.constants}}
        _arguments(writer, interface, steps, carried[index], graph, index)
        if marked:
            writer.scope["_at"] = arena.fast_at()
        routines = write_steps(writer, steps, marked=marked)
        written: set[int] = set()
        results = ", ".join(writer.result(r, later, written) for r in interface.results)
        writer.lines.append(f"    return ({results}{',' if interface.results else ''})")
        functions.append(_compile(writer, routines, graph, index))
    return tuple(functions)


def _arguments(
    writer: Writer, interface: Interface, steps: Sequence[Step], carried: set[int], graph: Graph, index: int
) -> None:
    """Unpacks what the segment uses; whatever else it is given dies when the list is emptied."""
    given: set[int] = set()
    returned = {r.value for r in interface.results if isinstance(r, Read)}
    arriving = {v.id for v in graph.values if v.arrives == index}
    dropped = {s.value for s in steps if isinstance(s, Drop)}
    slots = {r.value for r in interface.results if isinstance(r, Slot) and r.value is not None}
    used = carried | returned | slots | (arriving & (dropped | _reads(graph, steps)))
    places: list[int] = []
    names: list[str] = []
    for position, value in enumerate(interface.arguments):
        if value is not None and value in used and value not in given:
            given.add(value)
            places.append(position)
            names.append(f"v{value}")
    if places:
        writer.scope["_given"] = itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))
        rows = [", ".join(names[at : at + _ABREAST]) for at in range(0, len(names), _ABREAST)]
        writer.lines.append("    [" + ",\n     ".join(rows) + "] = _given(args)")
    writer.lines.append("    args.clear()")


def _reads(graph: Graph, steps: Sequence[Step]) -> set[int]:
    return {v for s in steps if isinstance(s, Run) for v in graph.recipes[s.recipe].read_values}


def _compile(writer: Writer, routines: Sequence[str], graph: Graph, index: int) -> Segment:
    name = graph.segments[index].name
    source = "\n".join((*routines, f"def {name}(args):", *writer.lines, ""))
    file = f"<lowtide {name} {graph.key} #{next(_SERIAL)}>"
    # Registered so that a traceback through generated code shows its lines.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), writer.scope)
    return writer.scope[name]  # type: ignore[no-any-return]
