"""A graph to which implementations are being added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from lowtide.ir.call import Arg, NamedArg, Read, Ref
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, Graph, Group, MiniTrace, Option, Recipe, Role, Takeover, Value


class GraphBuilder:
    """A graph under construction; what the program runs is not changed.

    Arguments:
        graph: as captured; its ids are kept.
        content: the tensor that a value of the caller's holds now, by id; None where that is not known. What follows
            from it may change while a network trains.
    """

    def __init__(self, graph: Graph, content: Callable[[int], Any] | None = None) -> None:
        self.graph = graph
        self._content = content
        self.values = list(graph.values)
        self.recipes = list(graph.recipes)
        self.groups = list(graph.groups)
        self.maker = {v: r for r in graph.program for v in graph.recipes[r].outputs}
        self.readers: dict[int, list[int]] = {}
        for r in graph.program:
            for v in graph.recipes[r].read_values:
                self.readers.setdefault(v, []).append(r)
        self._group_of = {r: i for i, g in enumerate(self.groups) for o in g.options for r in o.recipes}

    def content(self, value: int) -> Any:
        """The tensor that a value holds now; None where it is not known."""
        return None if self._content is None else self._content(value)

    def calls(self, *ops: str) -> Iterator[Recipe]:
        """The program's recipes that call one of some operators, in order."""
        return (self.recipes[r] for r in self.graph.program if self.recipes[r].op in ops)

    def made_by(self, value: int) -> Recipe | None:
        """The program's recipe that makes a value; None for what the caller gives."""
        return self.recipes[self.maker[value]] if value in self.maker else None

    def is_free(self, recipes: Iterable[int]) -> bool:
        """Whether no group has any of some recipes."""
        return all(r not in self._group_of for r in recipes)

    def may_replace(self, recipes: Sequence[int]) -> bool:
        """Whether `group` would take options that replace some recipes of the program."""
        number = self._group_of.get(recipes[0])
        if number is None:
            return self.is_free(recipes)
        return set(self.groups[number].options[0].recipes) == set(recipes)

    def can_do_without(self, recipe: int, value: int) -> bool:
        """Whether some option of a recipe's group reads a value nowhere in the recipe's segment."""
        number, segment = self._group_of.get(recipe), self.recipes[recipe].segment
        options = () if number is None else self.groups[number].options
        late = ([self.recipes[r] for r in o.recipes if self.recipes[r].segment == segment] for o in options)
        return any(all(value not in r.read_values for r in recipes) for recipes in late)

    def value(self, name: str, geometry: Geometry, role: Role = Role.ACTIVATION) -> int:
        """Adds a value with bytes of its own; returns its id."""
        self.values.append(Value(len(self.values), name, geometry.extent_B, role, geometry))
        return len(self.values) - 1

    def read(self, value: int) -> Read:
        """A value as it is, without views."""
        return Read(value, (), self.values[value].geometry)

    def recipe(
        self,
        like: Recipe,
        op: str,
        *,
        outputs: Sequence[int],
        reads: Sequence[Read],
        args: Sequence[Arg] | None = None,
        kwargs: Sequence[NamedArg] = (),
        paths: Sequence[tuple[int, ...]] | None = None,
        consumes: Sequence[Takeover] = (),
        segment: int | None = None,
    ) -> int:
        """Adds a pure recipe that is not in the program; returns its id.

        Arguments:
            like: whose place, origin and engine it takes over.
            outputs: ids of what it makes.
            args: None for what it reads, in order.
            paths: None for a single result that is the output itself, or a tuple with the outputs in order.
            segment: None for that of `like`.
        """
        if paths is None:
            paths = ((),) if len(outputs) == 1 else tuple((i,) for i in range(len(outputs)))
        heirs = {t.output for t in consumes}
        own = [i for i in range(len(outputs)) if i not in heirs]
        sizes_B = tuple(self.values[outputs[i]].size_B for i in own)
        self.recipes.append(
            Recipe(
                id=len(self.recipes),
                op=op,
                outputs=tuple(outputs),
                reads=tuple(reads),
                paths=tuple(paths),
                args=tuple(args) if args is not None else tuple(Ref(i) for i in range(len(reads))),
                kwargs=tuple(kwargs),
                segment=like.segment if segment is None else segment,
                effect=Effect.PURE,
                consumes=tuple(consumes),
                engine=like.engine,
                trace=MiniTrace(sizes_B, tuple(own.index(i) if i in own else None for i in range(len(outputs)))),
                origin=like.origin,
            )
        )
        return len(self.recipes) - 1

    def group(self, kind: str, name: str, replaces: Sequence[int], options: Iterable[Option]) -> bool:
        """Adds alternatives to what the program runs.

        Arguments:
            replaces: recipes of the program instead of which an option's recipes run.

        Returns: False, and nothing is added, if some of those recipes belong to a group already that replaces others.
        """
        options = tuple(options)
        if not options:
            return False
        number = self._group_of.get(replaces[0])
        if number is None and self.is_free(replaces):
            number = len(self.groups)
            self.groups.append(Group(name, (Option("program", tuple(replaces)), *options), kind))
            self._group_of.update(dict.fromkeys(replaces, number))
        elif number is not None and set(self.groups[number].options[0].recipes) == set(replaces):
            group = self.groups[number]
            self.groups[number] = replace(group, options=(*group.options, *options))
        else:
            return False
        self._group_of.update({r: number for o in options for r in o.recipes})
        return True

    def finish(self) -> Graph:
        """The graph with all that was added."""
        return replace(self.graph, values=tuple(self.values), recipes=tuple(self.recipes), groups=tuple(self.groups))
