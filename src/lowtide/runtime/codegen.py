"""Schedule -> Python source: one function per segment, one statement per step.

One name per value, operators called directly, results of several unpacked at once, `del` exactly where the
schedule drops. Nothing is looked up while it runs. Views are made in the argument list, so that they die with the
call. Stretches that come several times, layers, are written once, as functions of their own (`routines.py`). Where
allocations have planned addresses, every run says its number first, so that a misplaced allocation costs one
operator and not the rest of the segment.

What was offloaded in the forward travels to the backward in the slot of its value, as autograd keeps any saved
tensor; what crosses on both sides travels on the host with the token.
"""

from __future__ import annotations

import itertools
import linecache
import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Protocol

import torch

from lowtide.device import arena
from lowtide.device.engines import Engines
from lowtide.errors import IllegalPlan
from lowtide.ir.call import Read
from lowtide.ir.graph import Graph
from lowtide.ir.interface import Interface, Slot, Token, filled
from lowtide.ir.schedule import Drop, Run, Schedule
from lowtide.runtime.moves import Moves, host_saved_of, with_host_saved
from lowtide.runtime.routines import write_statements
from lowtide.runtime.statements import Name, Names, Statement, hosted, moves_anything, split, statements_of
from lowtide.runtime.writer import Writer

Segment = Callable[[list[Any]], tuple[Any, ...]]


class Observer(Protocol):
    """Is shown the tensors of every run while generated code runs; they are nobody's to keep."""

    def reads(self, step: Run, tensors: tuple[Any, ...]) -> None:
        """Called before a run, with what it reads: `Recipe.read_values`, in that order."""

    def made(self, step: Run, tensors: tuple[Any, ...]) -> None:
        """Called after a run, with what it keeps: `Run.keep`, in that order."""


_SERIAL = itertools.count(1)
_SEGMENTS = frozenset({"forward", "backward", "inference"})  # what tracebacks name; others are numbers
_WORD = re.compile(r"[A-Za-z0-9_]{1,32}")
_ABREAST = 16  # names in a line


def generate(
    graph: Graph,
    schedule: Schedule,
    interfaces: Sequence[Interface],
    held: Sequence[Any],
    token: torch.Tensor,
    empty: torch.Tensor,
    *,
    marked: bool = False,
    device: str = "cpu",
    engines: Engines | None = None,
    observer: Observer | None = None,
) -> tuple[Segment, ...]:
    """Compiles one function per segment.

    Arguments:
        interfaces: per segment, what the caller passes and expects.
        held: arguments without a text form.
        token: the tensor that names the plan.
        empty: what fills unused slots.
        marked: whether every run says its number to the arena.
        device: torch device type of the arena.
        engines: carry out the schedule's copies; None where it has none.
        observer: is shown what every run on the device reads and makes; None for code that shows nothing.

    Returns:
        Functions that take a boxed list, which they empty, and return a tuple.

    Raises:
        IllegalPlan: if the schedule offloads something and there are no engines.
    """
    moving = moves_anything(graph, schedule)
    if moving and engines is None:
        raise IllegalPlan("the plan offloads values to the host, and there are no copy engines: give a host budget")
    parts = [statements_of(graph, part) for part in split(schedule, len(graph.segments))]
    carried = [carried_into(graph, part, i) for i, part in enumerate(parts)]
    named = [_named(graph, interface) for interface in interfaces]
    host_saved: tuple[Name, ...] = ()
    if len(named) > 1:
        named, host_saved = _in_slots(graph, named, carried[-1])
    named = list(filled(tuple(named), carried[-1].difference(host_saved)))
    functions = []
    for index, (statements, interface) in enumerate(zip(parts, named, strict=True)):
        later: set[Name] = set().union(*carried[index + 1 :]) if index + 1 < len(parts) else set()
        writer = Writer(graph, held, marked=marked, observed=observer is not None)
        writer.scope |= {"_token": token, "_empty": empty, **{f"v{v}": held[at] for v, at in interface.constants}}
        statements = _without_idle_drops(graph, statements, carried[index], index)
        _arguments(writer, interface, statements, carried[index], graph, index, host_saved if index else ())
        if marked:
            writer.scope["_at"] = arena.fast_at(device)
        if observer is not None:
            writer.scope |= _shown_to(observer, statements)
        moves = None if engines is None or not moving else Moves(engines, _names(graph, statements))
        if moves is not None:
            writer.scope |= _calls_of(moves)
        routines = write_statements(writer, statements)
        if moves is not None:
            writer.lines.append("    _finish()")
        written: set[Name] = set()
        results = ", ".join(
            _ticket(writer, host_saved) if host_saved and isinstance(r, Token) else writer.result(r, later, written)
            for r in interface.results
        )
        writer.lines.append(f"    return ({results}{',' if interface.results else ''})")
        code = _compile(writer, routines, graph, index)
        functions.append(code if moves is None else _drained(code, moves))
    return tuple(functions)


def carried_into(graph: Graph, statements: Sequence[Statement], segment: int) -> set[Name]:
    """Names that a segment uses from before its boundary: read or handed over there, not made or given there."""
    names = Names(len(graph.values))
    made = _arriving(graph, segment)
    used: set[Name] = set()
    for statement in statements:
        if not isinstance(statement.step, Drop):
            used.update(n for n in statement.uses if n not in made)
            made.update(statement.binds)
    leaving = (names.within(v.memory, v.id) for v in graph.values if v.leaves == segment)
    used.update(n for n in leaving if n not in made)
    return used


def _arriving(graph: Graph, segment: int) -> set[Name]:
    names = Names(len(graph.values))
    arriving = (v.id for v in graph.values if v.arrives == segment)
    return {names.on_host(v) if hosted(graph, v) else v for v in arriving}


def _named(graph: Graph, interface: Interface) -> Interface:
    """The interface in names: what the caller gives in host memory is a copy on the host."""
    names = Names(len(graph.values))

    def name(value: int | None) -> Name | None:
        return names.on_host(value) if value is not None and hosted(graph, value) else value

    results = (replace(r, value=name(r.value)) if isinstance(r, Slot) else r for r in interface.results)
    return replace(interface, arguments=tuple(map(name, interface.arguments)), results=tuple(results))


def _in_slots(
    graph: Graph, interfaces: Sequence[Interface], carried: set[Name]
) -> tuple[list[Interface], tuple[Name, ...]]:
    """Gives what is carried on the host alone the slot of its value; returns as well what is carried on both sides."""
    names = Names(len(graph.values))
    away = {n - names.values: n for n in carried if names.values <= n < 2 * names.values}
    forward, *others, backward = interfaces
    arguments = list(backward.arguments)
    results = list(forward.results)
    passed = {slot.argument for slot in forward.slots.values()}
    placed = {n for i, n in enumerate(arguments) if n is not None and i not in passed}  # the caller gives it again
    for position, slot in forward.slots.items():
        if slot.value in away and slot.value not in carried:
            results[position] = replace(slot, value=away[slot.value])
            arguments[slot.argument] = away[slot.value]
            placed.add(away[slot.value])
        elif slot.value is not None and slot.value in away.values():
            placed.add(slot.value)
    forward = replace(forward, results=tuple(results))
    backward = replace(backward, arguments=tuple(arguments))
    return [forward, *others, backward], tuple(sorted(set(away.values()) - placed))


def _without_idle_drops(
    graph: Graph, statements: Sequence[Statement], carried: set[Name], segment: int
) -> list[Statement]:
    """Leaves out drops of what did not come along: an earlier segment released it when it returned."""
    there = carried | _arriving(graph, segment)
    kept = []
    for statement in statements:
        if isinstance(statement.step, Drop) and not there.issuperset(statement.ends):
            continue
        there.difference_update(statement.ends)
        there.update(statement.binds)
        kept.append(statement)
    return kept


def _names(graph: Graph, statements: Iterable[Statement]) -> list[str]:
    """Per number, what runs or is copied."""
    steps = (s.step for s in statements if s.is_numbered)
    return [graph.recipes[s.recipe].op if isinstance(s, Run) else graph.values[s.value].name for s in steps]  # type: ignore[union-attr]


def _calls_of(moves: Moves) -> dict[str, Any]:
    """What generated code calls."""
    return {
        "_send": moves.send,
        "_send_home": moves.send_back,
        "_fetch": moves.fetch,
        "_host_run": moves.run,
        "_wait": moves.wait,
        "_finish": moves.finish,
        "_arrived": moves.arrived,
        "_with_host_saved": with_host_saved,
        "_host_saved_of": host_saved_of,
    }


def _shown_to(observer: Observer, statements: Sequence[Statement]) -> dict[str, Any]:
    """What observed code calls before and after each run, given its number in the segment and the tensors."""
    steps = [s.step for s in statements if s.is_numbered]

    def reads(at: int, tensors: tuple[Any, ...]) -> None:
        step = steps[at]
        assert isinstance(step, Run)
        observer.reads(step, tensors)

    def made(at: int, tensors: tuple[Any, ...]) -> None:
        step = steps[at]
        assert isinstance(step, Run)
        observer.made(step, tensors)

    return {"_reads": reads, "_made": made}


def _ticket(writer: Writer, host_saved: Sequence[Name]) -> str:
    return f"_with_host_saved(_token, ({''.join(f'{writer.name(n)}, ' for n in host_saved).rstrip()}))"


def _drained(code: Segment, moves: Moves) -> Segment:
    """The segment; should it raise, its frames live until no engine touches their bytes any more."""

    def segment(arguments: list[Any]) -> tuple[Any, ...]:
        try:
            return code(arguments)
        except BaseException:
            moves.drain()
            raise

    return segment


def _arguments(
    writer: Writer,
    interface: Interface,
    statements: Sequence[Statement],
    carried: set[Name],
    graph: Graph,
    index: int,
    host_saved: Sequence[Name],
) -> None:
    """Unpacks what the segment uses; whatever else it is given dies when the list is emptied."""
    given: set[Name] = set()
    returned = {r.value for r in interface.results if isinstance(r, Read)}
    slots = {r.value for r in interface.results if isinstance(r, Slot) and r.value is not None}
    used = carried | returned | slots | (_arriving(graph, index) & {n for s in statements for n in s.uses})
    places: list[int] = []
    names: list[str] = []
    for position, name in enumerate(interface.arguments):
        if name is not None and name in used and name not in given:
            given.add(name)
            places.append(position)
            names.append(writer.name(name))
    if places:
        writer.scope["_given"] = itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))
        rows = [", ".join(names[at : at + _ABREAST]) for at in range(0, len(names), _ABREAST)]
        writer.lines.append("    [" + ",\n     ".join(rows) + "] = _given(args)")
    if host_saved:
        writer.lines.append(f"    [{', '.join(map(writer.name, host_saved))}] = _host_saved_of(args)")
    writer.lines.append("    args.clear()")
    for name in sorted(n for n in given if n >= len(graph.values)):
        geometry = graph.values[name - len(graph.values)].geometry
        device = "cpu" if geometry is None else geometry.device
        writer.lines.append(f"    {writer.name(name)} = _arrived({writer.name(name)}, {writer.literal(device)})")


def _compile(writer: Writer, routines: Sequence[str], graph: Graph, index: int) -> Segment:
    name = graph.segments[index].name
    name = name if name in _SEGMENTS else f"segment{index}"
    source = "\n".join((*routines, f"def {name}(args):", *writer.lines, ""))
    file = f"<lowtide {' '.join(_WORD.findall(f'{graph.segments[index].name} {graph.key}'))} #{next(_SERIAL)}>"
    # Registered so that a traceback through generated code shows its lines, as long as the code lives.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), writer.scope)
    code: Segment = writer.scope[name]
    weakref.finalize(code, linecache.cache.pop, file, None).atexit = False
    return code
