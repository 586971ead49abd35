"""Execution traces of eager programs, read in place (`ir/tape.py`), as graphs. Torch-free.

- A content is a value; a call that only makes aliases moves no bytes and is left out. A mutation is an operator that
  reads the storage's content and produces it anew.
- Constants live for the whole step. A content that is named when the trace ends is held to the end; any other may go
  after its last use, which is never later than where the trace releases it.
- Every operator counts as pure, and its results as its only allocations: a trace says nothing else.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import os
from pathlib import Path

from lowtide.errors import IllegalPlan, PlanFileError
from lowtide.ir.call import Read
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Graph, MiniTrace, Origin, Recipe, Role, Segment, Value
from lowtide.ir.tape import Leaf, Ran, Tape, load_tape
from lowtide.ir.trace_lines import REMEDY

_NANOSECOND_s = 1e-9


def load_trace(path: str | os.PathLike[str]) -> Graph:
    """Reads an execution trace, compressed if its name ends in `.gz`.

    Arguments:
        path: of JSON lines; `START` in one of them.

    Returns: a graph of two segments, forward and backward, where the trace says which is which, and else of one. An
        operator's place in the source is its line in the trace.

    Raises:
        PlanFileError: if there is no such file, or it is damaged or foreign; the text names the line.

    O(trace).
    """
    source = f"trace {Path(path)}"
    graph = graph_of(load_tape(path), Path(path).name)
    if not graph.recipes:
        raise PlanFileError(f"{source} calls nothing after START. {REMEDY}")
    try:
        check_graph(graph)
    except IllegalPlan as error:
        raise PlanFileError(f"{source} makes an inconsistent graph: {error}. {REMEDY}") from error
    return graph


def graph_of(tape: Tape, file: str) -> Graph:
    """The program of a tape that was read in place, with what is named at its end held until then.

    Arguments:
        file: the trace's name, for the places of operators.
    """
    kept = frozenset(tape.kept)
    names = ["step"] if tape.backward is None else ["forward", "backward"]
    last = len(names) - 1
    values: list[Value] = []
    recipes: list[Recipe] = []
    for index, (event, line) in enumerate(zip(tape.events, tape.lines, strict=True)):
        segment = 0 if tape.backward is None or index < tape.backward else 1
        if isinstance(event, Leaf):
            name = tape.names[len(values)]
            values.append(Value(len(values), name, event.size_B, Role.CONSTANT, arrives=0, persistent=True))
        elif isinstance(event, Ran) and event.sizes_B:
            outputs = tuple(range(len(values), len(values) + len(event.sizes_B)))
            for value, size_B in zip(outputs, event.sizes_B, strict=True):
                held = value + 1 in kept
                role = Role.ACTIVATION if not held else Role.GRADIENT if segment == last else Role.OUTPUT
                values.append(Value(value, tape.names[value], size_B, role, leaves=last if held else None))
            recipes.append(
                Recipe(
                    id=len(recipes),
                    op=event.name,
                    outputs=outputs,
                    reads=tuple(Read(number - 1) for number in event.inputs),
                    segment=segment,
                    time_s=event.cost_ns * _NANOSECOND_s,
                    trace=_results(event.sizes_B),
                    origin=Origin(source=f"{file}:{line}"),
                )
            )
    program = tuple(range(len(recipes)))
    return Graph(tuple(values), tuple(recipes), program, tuple(map(Segment, names)), name=tape.name, key=tape.key)


def _results(sizes_B: tuple[int, ...]) -> MiniTrace:
    """The allocations of an operator that makes its results and nothing else."""
    events = tuple(size_B for size_B in sizes_B if size_B)
    allocations = iter(range(len(events)))
    return MiniTrace(events, tuple(next(allocations) if size_B else None for size_B in sizes_B), measured=True)
