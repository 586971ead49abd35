"""Small graphs written call by call, without any geometry but that of what is given: a profile finds the rest."""

from __future__ import annotations

from typing import Any

import msgspec

from lowtide.ir.call import Arg, Items, Read, Ref, View
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, Graph, Recipe, Role, Segment, Takeover, Value


def contiguous(dtype: str, *shape: int) -> Geometry:
    """A dense row-major geometry."""
    stride: list[int] = []
    step = 1
    for extent in reversed(shape):
        stride.insert(0, step)
        step *= extent
    return Geometry(dtype, shape, tuple(stride))


class Program:
    """Builds a graph of one segment. Values are named by their ids; `Seen(value, view, ...)` reads through views."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.recipes: list[Recipe] = []
        self.alternatives: set[int] = set()

    def given(self, geometry: Geometry) -> int:
        """A value that the caller gives."""
        self.values.append(
            Value(len(self.values), f"v{len(self.values)}", geometry.extent_B, Role.INPUT, geometry, arrives=0)
        )
        return self.values[-1].id

    def call(self, op: str, *args: Any, returns: int = 0, **facts: Any) -> Any:
        """Adds a recipe; tensors among the arguments are `Seen`. `returns` 0 is one tensor, n a tuple of n."""
        reads: list[Read] = []
        passed = tuple(_argument(a, reads) for a in args)
        outputs = [self._value() for _ in range(returns or 1)]
        paths = tuple((i,) for i in range(returns)) if returns else ((),)
        recipe = Recipe(
            id=len(self.recipes), op=op, outputs=tuple(outputs), reads=tuple(reads), paths=paths, args=passed, **facts
        )
        if recipe.effect is Effect.RANDOM:
            state = self._value(Role.GENERATOR, 5056, contiguous("uint8", 5056))
            replay = {"id": recipe.id + 1, "effect": Effect.PURE, "state": state}
            self.recipes.append(_with(recipe, outputs=(*outputs, state), state=state))
            self.recipes.append(_with(recipe, **replay))
            self.alternatives.add(recipe.id + 1)
        else:
            self.recipes.append(recipe)
        return outputs if returns else outputs[0]

    def graph(self) -> Graph:
        """What was written so far."""
        program = tuple(r.id for r in self.recipes if r.id not in self.alternatives)
        return Graph(tuple(self.values), tuple(self.recipes), program, (Segment("all"),))

    def _value(self, role: Role = Role.ACTIVATION, size_B: int = 0, geometry: Geometry | None = None) -> int:
        self.values.append(Value(len(self.values), f"v{len(self.values)}", size_B, role, geometry))
        return self.values[-1].id


class Seen:
    """A value as an argument, seen through views."""

    def __init__(self, value: int, *views: View) -> None:
        self.value = value
        self.views = views


def overwrites(value: int, output: int = 0) -> tuple[Takeover, ...]:
    """What an in-place recipe consumes."""
    return (Takeover(value, output),)


def _argument(argument: Any, reads: list[Read]) -> Arg:
    if isinstance(argument, Seen):
        reads.append(Read(argument.value, argument.views))
        return Ref(len(reads) - 1)
    if isinstance(argument, list):
        return Items(tuple(_argument(a, reads) for a in argument))
    return argument  # type: ignore[no-any-return]


def _with(recipe: Recipe, **facts: Any) -> Recipe:
    return msgspec.structs.replace(recipe, **facts)
