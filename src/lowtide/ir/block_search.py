"""Finding the layers that a captured network repeats.

Every recipe of the program gets a mark: equal marks, equal recipes up to the names of values. A layer that comes n
times is a stretch of the forward's marks, and one of the backward's, with a period. Where in the period a layer begins
the marks do not say: cuts where modules end and few bytes cross are tried first. A forward stretch and a backward one
belong together if the backward reads what the forward made, one instance earlier per period. What has been guessed so
is then proved reference by reference (`block_wiring`).

Units: `_B` bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from lowtide.ir.block import Block, references
from lowtide.ir.block_wiring import Wiring, value_facts
from lowtide.ir.graph import Graph, Recipe
from lowtide.ir.periods import Stretch, periodic_stretches

_CUTS = 6  # places tried as a layer's beginning, per stretch


class _Windows(msgspec.Struct, frozen=True):
    """Consecutive pieces of a program: `times` windows of `period` recipes each, from place `start`."""

    start: int
    period: int
    times: int


class _Direction:
    """The recipes that one segment runs, in order, with their marks."""

    def __init__(self, graph: Graph, segment: int | None, marks: Sequence[int]) -> None:
        self.graph = graph
        self.recipes = [r for r in graph.program if graph.recipes[r].segment == segment]
        self.places = {r: place for place, r in enumerate(self.recipes)}
        self.stretches = periodic_stretches([marks[r] for r in self.recipes]) if len(self.recipes) > 1 else []
        self._crossing_B = self._count_crossing()
        self._modules = [graph.recipes[r].origin.module for r in self.recipes]

    def cuts(self, stretch: Stretch) -> Iterator[_Windows]:
        """Candidate cuts of a stretch into windows, the most likely ones first."""
        starts = range(stretch.start, min(stretch.start + stretch.period, stretch.end - 2 * stretch.period + 1))
        ranked = sorted(starts, key=lambda s: self._cost(s + stretch.period))
        for start in ranked[:_CUTS]:
            yield _Windows(start, stretch.period, (stretch.end - start) // stretch.period)

    def slice(self, windows: _Windows, index: int) -> list[int]:
        """The recipes of one window."""
        start = windows.start + index * windows.period
        return self.recipes[start : start + windows.period]

    def _cost(self, cut: int) -> tuple[int, int]:
        """How unlikely a layer begins here: what the modules on both sides share, and the bytes that cross."""
        before = next((m for m in reversed(self._modules[:cut]) if m), "")
        after = next((m for m in self._modules[cut:] if m), "")
        return len(common_path((before, after))), self._crossing_B[cut]

    def _count_crossing(self) -> list[int]:
        """Per place, bytes of what is made before it and read from there on, in this direction."""
        made: dict[int, int] = {}
        last: dict[int, int] = {}
        for place, recipe in enumerate(self.recipes):
            for value in self.graph.recipes[recipe].read_values:
                last[value] = place
            for value in self.graph.recipes[recipe].outputs:
                made.setdefault(value, place)
        change_B = [0] * (len(self.recipes) + 2)
        for value, place in made.items():
            if last.get(value, place) > place:
                change_B[place + 1] += self.graph.values[value].size_B
                change_B[last[value] + 1] -= self.graph.values[value].size_B
        return list(accumulate(change_B))


def find_blocks(graph: Graph) -> tuple[Block, ...]:
    """Finds every layer of which a graph has at least two in a row, the largest stretches first where they overlap.

    Layers that hold arguments without a text form, or of which alternatives are chosen in groups, are not found.

    Returns: in program order, with names of their own.

    O(recipes^2) in vector operations, O(references) besides, the first time.
    """
    known: dict[str, tuple[Block, ...]] = graph.__dict__  # what is found out about a graph once: it never changes
    if "_blocks" not in known:
        known["_blocks"] = _find(graph)
    return known["_blocks"]


def program_blocks(graph: Graph) -> tuple[Block, ...]:
    """Finds the layers of what the program runs, whatever else could run: see `find_blocks`.

    Returns: blocks without alternatives, with the graph's own ids.
    """
    known: dict[str, tuple[Block, ...]] = graph.__dict__
    if "_program_blocks" not in known:
        own = tuple(msgspec.structs.replace(graph.recipes[r], id=i) for i, r in enumerate(graph.program))
        alone = msgspec.structs.replace(graph, recipes=own, program=tuple(range(len(own))), groups=())
        rows = ((b, tuple(tuple(graph.program[i] for i in row) for row in b.recipes)) for b in find_blocks(alone))
        known["_program_blocks"] = tuple(msgspec.structs.replace(b, recipes=r) for b, r in rows)
    return known["_program_blocks"]


def _find(graph: Graph) -> tuple[Block, ...]:
    marks = _marks(graph)
    wiring = Wiring(graph, marks)
    found: list[tuple[int, Block]] = []
    for part in sorted({s.part for s in graph.segments}):
        segments = [i for i, s in enumerate(graph.segments) if s.part == part]
        down = _Direction(graph, segments[0], marks)
        up = _Direction(graph, segments[1] if len(segments) > 1 else None, marks)
        claimed: set[int] = set()
        for stretch in down.stretches:
            if claimed.isdisjoint(down.recipes[stretch.start : stretch.end]):
                block = _block_of(wiring, down, up, stretch)
                if block is not None:
                    claimed.update(r for instance in block.recipes for r in instance)
                    found.append((graph.program.index(block.recipes[0][0]), block))
    return _named(graph, [block for _, block in sorted(found, key=lambda f: f[0])])


def _block_of(wiring: Wiring, down: _Direction, up: _Direction, stretch: Stretch) -> Block | None:
    for windows in down.cuts(stretch):
        pieces = [down.slice(windows, i) for i in range(windows.times)]
        saved = _saved(wiring, pieces, up)
        if not saved:
            block = wiring.block(pieces, [[] for _ in pieces])
            if block is not None and block.passed_down:
                return block
            continue
        for other in up.stretches:
            if not any(other.start <= place < other.end for place in saved):
                continue
            for backward in up.cuts(other):
                block = _paired(wiring, pieces, up, backward, saved)
                if block is not None and block.passed_down:
                    return block
    return None


def _saved(wiring: Wiring, pieces: Sequence[Sequence[int]], up: _Direction) -> dict[int, list[int]]:
    """Per place of the backward, the instances to which the values that it reads belong.

    A value belongs to the instance that makes it, or that is the first to read what the caller gives.
    """
    graph = wiring.graph
    instance_of: dict[int, int] = {}
    for instance, recipes in enumerate(pieces):
        for recipe in recipes:
            for value in graph.recipes[recipe].read_values:
                if graph.values[value].arrives is not None:
                    instance_of.setdefault(value, instance)
            for value in graph.recipes[recipe].outputs:
                instance_of[value] = instance
    saved: dict[int, list[int]] = {}
    for value, instance in instance_of.items():
        for reader in wiring.readers.get(value, ()):
            if reader in up.places:
                saved.setdefault(up.places[reader], []).append(instance)
    return saved


def _paired(
    wiring: Wiring,
    pieces: Sequence[list[int]],
    up: _Direction,
    backward: _Windows,
    saved: dict[int, list[int]],
) -> Block | None:
    """The block whose instance i runs forward piece i and backward window `last - i`, where most reads say so."""
    votes: Counter[int] = Counter()
    for window in range(backward.times):
        start = backward.start + window * backward.period
        for place in range(start, start + backward.period):
            votes.update(base + window for base in saved.get(place, ()))
    if not votes:
        return None
    last = votes.most_common(1)[0][0]
    instances = [i for i in range(len(pieces)) if 0 <= last - i < backward.times]
    return wiring.block([pieces[i] for i in instances], [up.slice(backward, last - i) for i in instances])


def common_path(modules: Sequence[str]) -> tuple[str, ...]:
    """The leading components that all dotted names share."""
    shared: list[str] = []
    for level in zip(*(m.split(".") for m in modules), strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return tuple(shared)


def _named(graph: Graph, blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Blocks by what their modules share, "layer" where that is the whole model; where several share it, by what the
    modules of their first instance share, or by the first of those.
    """
    modules = [[[m for r in row if (m := graph.recipes[r].origin.module)] for row in b.recipes] for b in blocks]
    shared = [".".join(common_path([m for row in rows for m in row])) for rows in modules]
    names: list[str] = []
    for wide, (first, *_) in zip(shared, modules, strict=True):
        name = wide or "layer"
        if shared.count(wide) > 1 and first:
            narrow = ".".join(common_path(first))
            name = narrow if narrow != wide else first[0]
        while name in names:
            name += "'"
        names.append(name)
    return tuple(msgspec.structs.replace(b, name=n) for b, n in zip(blocks, names, strict=True))


def _marks(graph: Graph) -> list[int]:
    """Per recipe, a number that equal recipes share."""
    known: dict[object, int] = {}
    grouped = {r for g in graph.groups for o in g.options for r in o.recipes}
    return [known.setdefault(r.id if r.id in grouped else _facts(graph, r), len(known)) for r in graph.recipes]


def _facts(graph: Graph, recipe: Recipe) -> object:
    """Everything about a recipe but which values it is about."""
    reads = tuple((r.views, r.geometry, graph.values[r.value].size_B) for r in recipe.reads)
    outputs = tuple(value_facts(graph.values[v]) for v in recipe.outputs)
    named = references(recipe)
    repeated = tuple(named.index(v) for v in named)  # which of its references are to one value
    consumed = tuple((named.index(t.value), t.output) for t in recipe.consumes)
    call = (recipe.op, recipe.args, recipe.kwargs, recipe.paths, recipe.segment, recipe.effect, recipe.engine)
    return (*call, reads, outputs, repeated, consumed, recipe.state is None, recipe.time_s, recipe.trace)
