"""Proving that pieces of a program are instances of one block: every reference of every instance is looked at."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from lowtide.ir.block import Block, Wire, references
from lowtide.ir.graph import Graph, Value


class _Odd(Exception):
    """Instance `instance` is not like the others; None where no single one is to blame."""

    def __init__(self, instance: int | None) -> None:
        super().__init__(instance)
        self.instance = instance


def value_facts(value: Value) -> object:
    """What the values in one slot of a block have in common: everything but ids and names."""
    whole = (value.size_B, value.geometry, value.role, value.arrives, value.persistent)
    return (*whole, value.leaves, value.held, value.readable_through, None if value.handed_to is None else value.id)


class Wiring:
    """Who makes and who reads the values of one graph.

    Arguments:
        marks: per recipe, a number that equal recipes share.
    """

    def __init__(self, graph: Graph, marks: Sequence[int]) -> None:
        self.graph, self.marks = graph, marks
        program = set(graph.program)
        self.alternatives: dict[int, list[int]] = defaultdict(list)
        self.readers: dict[int, list[int]] = defaultdict(list)
        for recipe in graph.recipes:
            for value in references(recipe):
                self.readers[value].append(recipe.id)
            if recipe.id not in program:
                for value in recipe.outputs:
                    self.alternatives[value].append(recipe.id)

    def block(self, forward: Sequence[list[int]], backward: Sequence[list[int]]) -> Block | None:
        """The block of which these are instances, without those at either end that are not like the rest.

        Arguments:
            forward, backward: per instance, the recipes that the program runs, equal by their marks.

        Returns: a block without a name; None if no two instances are alike.
        """
        low, high = 0, len(forward)
        while high - low >= 2:
            try:
                return self._block(forward[low:high], backward[low:high])
            except _Odd as odd:
                if odd.instance is None:
                    return None
                if odd.instance < (high - low) // 2:
                    low += odd.instance + 1
                else:
                    high = low + odd.instance
        return None

    def _block(self, forward: Sequence[list[int]], backward: Sequence[list[int]]) -> Block:
        made = [[self._made(f), self._made(b)] for f, b in zip(forward, backward, strict=True)]
        values = [[*f, *b] for f, b in made]
        place = {v: (i, s) for i, row in enumerate(values) for s, v in enumerate(row)}
        recipes = [[*f, *b, *self._others(v)] for f, b, v in zip(forward, backward, values, strict=True)]
        self._check_alternatives(recipes, place, len(forward[0]) + len(backward[0]))
        wires = []
        for position in range(len(recipes[0])):
            named = [references(self.graph.recipes[r[position]]) for r in recipes]
            wires.append(tuple(self._wire(list(column), values, place) for column in zip(*named, strict=True)))
        self._check_outside(recipes, values, len(made[0][0]) + len(made[0][1]))
        return Block(
            name="",
            recipes=tuple(map(tuple, recipes)),
            values=tuple(map(tuple, values)),
            forward=len(forward[0]),
            backward=len(backward[0]),
            made_forward=len(made[0][0]),
            made_backward=len(made[0][1]),
            wires=tuple(wires),
        )

    def _made(self, recipes: Sequence[int]) -> list[int]:
        return [v for r in recipes for v in self.graph.recipes[r].outputs]

    def _others(self, values: Sequence[int]) -> list[int]:
        """Recipes outside the program that make an instance's values, in the order of the values."""
        return list(dict.fromkeys(r for v in values for r in self.alternatives.get(v, ())))

    def _check_alternatives(
        self, recipes: Sequence[Sequence[int]], place: dict[int, tuple[int, int]], program: int
    ) -> None:
        """Alternatives make the same slots of their own instance, everywhere alike."""
        rows = []
        for instance, row in enumerate(recipes):
            facts = []
            for recipe in row[program:]:
                slots = [place.get(v) for v in self.graph.recipes[recipe].outputs]
                if any(h is None or h[0] != instance for h in slots):
                    raise _Odd(instance)
                facts.append((self.marks[recipe], tuple(h[1] for h in slots if h is not None)))
            rows.append(tuple(facts))
        self._same(rows)

    def _wire(self, column: list[int], values: list[list[int]], place: dict[int, tuple[int, int]]) -> Wire | None:
        """Where every instance finds the value that it refers to here; per instance, `column` has that value.

        Raises:
            _Odd: if they do not find it in the same way.
        """
        slots = [place.get(v) for v in column]
        wires = [None if h is None else Wire(h[0] - i, h[1]) for i, h in enumerate(slots)]
        inner = [w for w in wires if w is not None]
        if inner:
            wire = Counter(inner).most_common(1)[0][0]
            for instance, found in enumerate(wires):
                beyond = not 0 <= instance + wire.step < len(column)
                if found != wire and not (found is None and beyond):
                    raise _Odd(instance)
            return wire
        if len(set(column)) == 1:
            return None
        if any(self.graph.values[v].arrives is None for v in column) or len(set(column)) < len(column):
            self._same(column)
        self._same([value_facts(self.graph.values[v]) for v in column])
        for instance, value in enumerate(column):
            place[value] = (instance, len(values[instance]))
            values[instance].append(value)
        return Wire(0, len(values[0]) - 1)

    def _check_outside(self, recipes: Sequence[Sequence[int]], values: list[list[int]], made: int) -> None:
        """Other recipes read no instance's own parameters, and what is made at one end only."""
        inside = {r for row in recipes for r in row}
        last = len(values) - 1
        for slot in range(len(values[0])):
            read = [i for i, row in enumerate(values) if any(r not in inside for r in self.readers.get(row[slot], ()))]
            if not read:
                continue
            if slot >= made:
                raise _Odd(read[0] if len(read) == 1 else None)
            if len(read) > 1:
                raise _Odd(0 if read == [0, last] and last > 1 else None)

    def _same(self, facts: Sequence[object]) -> None:
        """Raises:
        _Odd: if the facts of the instances differ.
        """
        common, count = Counter(facts).most_common(1)[0]
        if count < len(facts):
            odd = next(i for i, fact in enumerate(facts) if fact != common)
            raise _Odd(odd if count == len(facts) - 1 else None)
