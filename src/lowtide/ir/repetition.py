"""A graph with one of its layers more often, or less often: so that depth costs no capture.

Instance p of the result finds what it refers to in instance p + step of the result, as the captured instances do. What
lies beyond the first or the last instance is what the captured first or last one referred to. Readers of the first
instances' values go on reading them there, readers of the last ones' read those of the new last ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lowtide.errors import PlanError
from lowtide.ir.block import Block, block_named, references
from lowtide.ir.block_search import find_blocks
from lowtide.ir.graph import Graph, Group, Recipe, Takeover, Value


def repeat(graph: Graph, block: Block, times: int) -> Graph:
    """The graph with `block` `times` times in a row.

    New instances are copies with parameters, gradients and random states of their own. Arriving values come first,
    then what is made, in program order; recipes are in program order, alternatives after them.

    Arguments:
        block: of this graph, as `find_blocks` found it.
        times: at least 1.

    Raises:
        PlanError: if it is less than 1, or if instances that would go are read by the rest of the graph.

    O(result).
    """
    if times < 1:
        raise PlanError(f"a graph has block {block.name!r} at least once, not {times} times")
    return _Repetition(graph, block, times).run()


def deepened(graph: Graph, times: Mapping[str, int]) -> Graph:
    """The graph with layers as often in a row as is said, by their names (see `find_blocks`).

    Raises:
        PlanError: if there is no such layer, or it cannot come that often.
    """
    # The rarest first, for searching is dearer than copying; but a layer that comes once has no name any more.
    for name, n in sorted(times.items(), key=lambda item: (item[1] == 1, item[1])):
        graph = repeat(graph, block_named(graph, find_blocks(graph), name), n)
    return graph


class _Repetition:
    """One repetition: old ids in, new values and recipes out. A new value is known by instance and slot until the end.

    Arguments:
        graph, block, times: see `repeat`.
    """

    def __init__(self, graph: Graph, block: Block, times: int) -> None:
        self.graph, self.block, self.times = graph, block, times
        self.head = (block.times + 1) // 2  # captured instances that are counted from the front
        self.place = {v: (i, s) for i, row in enumerate(block.values) for s, v in enumerate(row)}
        self.values: list[Value] = []
        self.outside: dict[int, int] = {}
        self.inside: list[list[int]] = [[-1] * len(block.values[0]) for _ in range(times)]
        self.recipes: list[Recipe] = []
        self.program: list[int] = []
        self.new_recipes: dict[int, int] = {}  # old recipe outside the block -> new one

    def run(self) -> Graph:
        """Makes the graph."""
        graph, block = self.graph, self.block
        for value in graph.values:
            if value.arrives is not None and value.id not in self.place:
                self.outside[value.id] = self._add(value, value.name)
            elif value.id in self.place and self.place[value.id][0] == 0 and self.place[value.id][1] in block.owned:
                for instance in range(self.times):
                    self._instance_value(instance, self.place[value.id][1])
        self._program()
        self._alternatives()
        values = [self._heir(v) for v in self.values]
        key = f"{graph.key} {block.name} {self.times} {block.recipes[0][0]}"
        return Graph(
            values=tuple(values),
            recipes=tuple(self.recipes),
            program=tuple(self.program),
            segments=graph.segments,
            groups=self._groups(),
            name=graph.name,
            key=hashlib.sha256(key.encode()).hexdigest()[:16],
        )

    # values ---------------------------------------------------------------------------------------------------

    def _add(self, value: Value, name: str) -> int:
        self.values.append(msgspec.structs.replace(value, id=len(self.values), name=name))
        return len(self.values) - 1

    def _instance_value(self, instance: int, slot: int) -> None:
        row = [values[slot] for values in self.block.values]
        names = [self.graph.values[v].name for v in row]
        captured = self._captured(instance)
        name = names[captured if captured is not None else 0]
        if (numbered := _numbered(names, instance)) is not None:
            name = numbered
        elif captured is None:
            name = f"{name}[{instance}]"
        self.inside[instance][slot] = self._add(self.graph.values[row[0]], name)

    def _captured(self, instance: int) -> int | None:
        """The captured instance of which an instance keeps the names; None for a new one."""
        if instance < self.head:
            return instance
        from_end = self.times - instance
        return self.block.times - from_end if from_end <= self.block.times - self.head else None

    def _from_outside(self, value: int) -> int:
        """A value as recipes outside the block find it.

        Raises:
            PlanError: if it belongs to an instance that is no more.
        """
        if value not in self.place:
            return self.outside[value]
        captured, slot = self.place[value]
        instance = captured if captured < self.head else self.times - self.block.times + captured
        if not 0 <= instance < self.times:
            raise PlanError(
                f"instance {captured} of block {self.block.name!r} cannot go: other recipes read its value "
                f"{self.graph.values[value].name!r}. Keep at least {max(captured + 1, self.block.times - captured)}."
            )
        return self.inside[instance][slot]

    def _from_instance(self, instance: int, position: int, reference: int) -> int:
        """What reference `reference` of recipe `position` of an instance names."""
        wire = self.block.wires[position][reference]
        captured = 0
        if wire is not None:
            source = instance + wire.step
            if 0 <= source < self.times:
                return self.inside[source][wire.slot]
            captured = instance if source < 0 else self.block.times - self.times + instance
        recipe = self.graph.recipes[self.block.recipes[captured][position]]
        return self.outside[references(recipe)[reference]]

    def _heir(self, value: Value) -> Value:
        if value.handed_to is None:
            return value
        return msgspec.structs.replace(value, handed_to=self._from_outside(value.handed_to))

    # recipes --------------------------------------------------------------------------------------------------

    def _program(self) -> None:
        block = self.block
        forward = range(block.forward)
        backward = range(block.forward, block.forward + block.backward)
        runs: dict[int, tuple[range, range]] = {}
        for row in block.recipes:
            runs |= {row[k]: (forward, range(self.times)) for k in forward}
            runs |= {row[k]: (backward, range(self.times - 1, -1, -1)) for k in backward}
        done: set[range] = set()
        for old in self.graph.program:
            if old not in runs:
                self.program.append(self._outside_recipe(old))
            elif runs[old][0] not in done:
                positions, instances = runs[old]
                done.add(positions)
                self.program += [self._instance_recipe(i, k) for i in instances for k in positions]

    def _alternatives(self) -> None:
        program, inside = set(self.graph.program), {r for row in self.block.recipes for r in row}
        for recipe in self.graph.recipes:
            if recipe.id not in program and recipe.id not in inside:
                self._outside_recipe(recipe.id)
        others = range(self.block.forward + self.block.backward, len(self.block.recipes[0]))
        for instance in range(self.times):
            for position in others:
                self._instance_recipe(instance, position)

    def _outside_recipe(self, old: int) -> int:
        recipe = self.graph.recipes[old]
        for value in recipe.outputs:
            if value not in self.outside and value not in self.place:
                self.outside[value] = self._add(self.graph.values[value], self.graph.values[value].name)
        self.new_recipes[old] = len(self.recipes)
        return self._append(recipe, [self._from_outside(v) for v in references(recipe)], self._from_outside)

    def _instance_recipe(self, instance: int, position: int) -> int:
        recipe = self.graph.recipes[self.block.recipes[0][position]]
        modules = [self.graph.recipes[row[position]].origin.module for row in self.block.recipes[:2]]
        if (module := _numbered(modules, instance)) is not None:
            recipe = msgspec.structs.replace(recipe, origin=msgspec.structs.replace(recipe.origin, module=module))
        slots = {v: self.place[v][1] for v in recipe.outputs}
        for slot in slots.values():
            if self.inside[instance][slot] < 0:
                self._instance_value(instance, slot)
        named = [self._from_instance(instance, position, j) for j in range(len(references(recipe)))]
        return self._append(recipe, named, lambda v: self.inside[instance][slots[v]])

    def _append(self, recipe: Recipe, named: Sequence[int], output: Callable[[int], int]) -> int:
        """Adds a recipe with new ids: `named` for its references, in order, and `output(old)` for its outputs."""
        new = dict(zip(references(recipe), named, strict=True))
        state = recipe.state
        if state is not None:
            state = output(state) if state in recipe.outputs else new[state]
        copy = msgspec.structs.replace(
            recipe,
            id=len(self.recipes),
            outputs=tuple(output(v) for v in recipe.outputs),
            reads=tuple(msgspec.structs.replace(r, value=v) for r, v in zip(recipe.reads, named, strict=False)),
            consumes=tuple(Takeover(new[t.value], t.output) for t in recipe.consumes),
            state=state,
        )
        self.recipes.append(copy)
        return copy.id

    def _groups(self) -> tuple[Group, ...]:
        """Groups as they were: no recipe of a block belongs to one."""
        return tuple(g.renumbered(self.new_recipes) for g in self.graph.groups)


def _numbered(names: Sequence[str], instance: int) -> str | None:
    """The name that an instance has where those of the first two differ in a number that counts them."""
    first, second = (name.split(".") for name in names[:2])
    differing = [k for k, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
    if len(first) != len(second) or len(differing) != 1:
        return None
    a, b = first[differing[0]], second[differing[0]]
    if not (a.isdigit() and b.isdigit() and int(a) < int(b)):
        return None
    first[differing[0]] = str(int(a) + instance * (int(b) - int(a)))
    return ".".join(first)
