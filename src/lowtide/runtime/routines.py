"""Stretches of a schedule that are equal up to the names of values, written once and called where they come.

A schedule is cut where layers begin (`ir.block_search`); every piece is written with values named in the order of
their appearance. Pieces with one text become one function. A piece that comes once, because the plan treats its layer
like no other, is halved, as long as halves are worth a call. A function takes its values in a list that it empties, and
the caller first deletes those that the piece drops, so that each dies exactly at its `del`. What comes once to the end
is written where it runs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from lowtide.ir.block_search import program_blocks
from lowtide.ir.graph import Graph
from lowtide.ir.schedule import Run
from lowtide.runtime.statements import Name, Statement
from lowtide.runtime.writer import Writer

LEAST_RUNS = 4
"""Fewer are not worth a call."""
_HALVINGS = 3


@dataclass(frozen=True)
class Piece:
    """Consecutive statements of a segment.

    Arguments:
        numbers: how many of them have one.
        text: its lines with values named by place; empty for what is too short to be a function.
        given, lost: names that it uses from before; of those, which it deletes.
        left: names that it makes and leaves.
    """

    statements: Sequence[Statement]
    numbers: int
    text: tuple[str, ...] = ()
    given: tuple[Name, ...] = ()
    lost: tuple[Name, ...] = ()
    left: tuple[Name, ...] = ()


def write_statements(writer: Writer, statements: Sequence[Statement]) -> list[str]:
    """Writes a segment.

    Arguments:
        writer: gets the lines.

    Returns: the lines of the functions that those lines call.

    O(statements), and O(recipes^2) in vector operations the first time for a graph.
    """
    pieces = _pieces(writer, statements)
    count = Counter(piece.text for piece in pieces)
    names: dict[tuple[str, ...], str] = {}
    lines: list[str] = []
    first = 0
    for piece in pieces:
        if not piece.text or count[piece.text] < 2:
            writer.write(piece.statements, partial(_number, first))
        else:
            if piece.text not in names:
                names[piece.text] = f"layer{len(names)}"
                lines += [f"def {names[piece.text]}(values, at):", *piece.text, ""]
            writer.lines += _call(writer, names[piece.text], piece, first)
        first += piece.numbers
    return lines


def _number(first: int, run: int) -> str:
    return str(first + run)


def _number_from(run: int) -> str:
    return f"at + {run}" if run else "at"


def _call(writer: Writer, name: str, piece: Piece, first: int) -> list[str]:
    """The caller's statements: it keeps no reference to what the function drops, not even in a list."""
    given = f"[{', '.join(map(writer.name, piece.given))}]"
    left = "".join(f"{writer.name(n)}, " for n in piece.left)
    before = []
    if piece.lost:
        before = [f"    _ = {given}", f"    del {', '.join(map(writer.name, piece.lost))}"]
        given = "_"
    return [*before, f"    {f'{left.rstrip()} = ' if left else ''}{name}({given}, {first})"]


def _pieces(writer: Writer, statements: Sequence[Statement]) -> list[Piece]:
    """The statements in pieces, as large as they come several times."""
    levels = _levels(writer.graph, statements)
    parts = [range(len(statements))]
    pieces: dict[range, Piece] = {}
    for level in range(_HALVINGS + 1):
        once = Counter(pieces[p].text for p in parts if p in pieces)
        cuts = [i for i in range(len(statements)) if levels.get(i, level + 1) <= level]
        parts = [q for p in parts for q in (_cut(p, cuts) if p not in pieces or once[pieces[p].text] < 2 else [p])]
        for part in parts:
            if part not in pieces:
                pieces[part] = _piece(writer, statements[part.start : part.stop])
    return [pieces[part] for part in parts]


def _cut(part: range, cuts: Sequence[int]) -> list[range]:
    """A range of statements, cut."""
    inside = cuts[bisect_right(cuts, part.start) : bisect_left(cuts, part.stop)]
    return [range(a, b) for a, b in pairwise((part.start, *inside, part.stop))]


def _levels(graph: Graph, statements: Sequence[Statement]) -> dict[int, int]:
    """Where pieces may begin: statement -> how often layers were halved for it.

    A layer begins where its first recipe runs first, or another one that makes the same, and ends where the next one
    begins, or after its last recipe.
    """
    begins: dict[int, int] = {}
    ends: set[int] = set()
    for block in program_blocks(graph):
        for start, size, last in ((0, block.forward, -1), (block.forward, block.backward, 0)):
            for row in block.recipes if size else ():
                begins.update((row[start + k], level) for k, level in _halves(size))
            if size:
                ends.add(block.recipes[last][start + size - 1])
    levels: dict[int, int] = {}
    ended = False
    maker = {v: r for r in graph.program for v in graph.recipes[r].outputs}
    for index, statement in enumerate(statements):
        step = statement.step
        if isinstance(step, Run):
            made = graph.recipes[step.recipe].outputs
            recipe = next((maker[v] for v in made if v in maker), step.recipe)
            level = begins.pop(recipe, None)  # a recomputation begins nothing
            if ended or level is not None:
                levels[index] = 0 if ended or level is None else level
            ended = recipe in ends
            ends.discard(recipe)
    return levels


def _halves(size: int) -> Iterator[tuple[int, int]]:
    """Places in a layer of so many recipes at which pieces begin, with the number of halvings that it takes."""
    seen: set[int] = set()
    for level in range(_HALVINGS + 1):
        for place in (size * k >> level for k in range(1 << level)):
            if place not in seen:
                seen.add(place)
                yield place, level


def _piece(writer: Writer, statements: Sequence[Statement]) -> Piece:
    """Statements as a function's body; without a text where there are too few of them."""
    numbers = sum(s.is_numbered for s in statements)
    if sum(isinstance(s.step, Run) for s in statements) < LEAST_RUNS:
        return Piece(statements, numbers)
    given, lost, left = _passing(statements)
    places: dict[Name, int] = {}
    with writer.apart(places) as lines:
        lines.append(f"    [{', '.join(writer.name(n) for n in given)}] = values")
        lines.append("    values.clear()")
        writer.write(statements, _number_from)
        if left:
            lines.append(f"    return {', '.join(writer.name(n) for n in left)},")
    return Piece(statements, numbers, tuple(lines), given, lost, left)


def _passing(statements: Sequence[Statement]) -> tuple[tuple[Name, ...], tuple[Name, ...], tuple[Name, ...]]:
    """Names that statements use from before, those of them that they delete, and those that they bind and leave."""
    given: dict[Name, None] = {}
    lost: dict[Name, None] = {}
    made: dict[Name, None] = {}
    touched: set[Name] = set()
    for statement in statements:
        given.update((n, None) for n in statement.uses if n not in touched)
        touched.update(statement.uses)
        for name in statement.ends:
            if name in made:
                del made[name]
            else:
                lost[name] = None
        made.update((n, None) for n in statement.binds)
        touched.update(statement.binds)
    return tuple(given), tuple(lost), tuple(made)
