"""A layer that a captured network repeats: of which recipes each instance is made, and how the instances are wired.

Two instances are the same block if renaming turns one into the other: the same operators in the same order with the
same arguments on tensors of the same geometry; parameters of its own, or shared by all; and every other value taken
from the same slot of the instance as many steps away. Modules decide nothing: their names serve people.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lowtide.errors import PlanError
from lowtide.ir.graph import Effect, Graph, Recipe


class Wire(msgspec.Struct, frozen=True):
    """Where an instance finds a value: in `slot` of the instance `step` further down the network, 0 for itself."""

    step: int
    slot: int


class Block(msgspec.Struct, frozen=True):
    """One layer and its instances in a row, first to last in the forward.

    Arguments:
        name: what the modules of all instances have in common, `"layer3"`; `"layer"` where that is nothing. No other
            block of the graph has it.
        recipes: per instance, its recipes: of the forward, then of the backward, in program order, then alternatives.
        values: per instance, what it holds, slot by slot: made by its forward, made by its backward, then the
            parameters, buffers and inputs that no other recipe reads.
        forward, backward: recipes of an instance that the program runs in either direction.
        made_forward, made_backward: values of an instance that are made in either direction.
        wires: per recipe of an instance, per value that it refers to (see `references`), where that is found; None for
            one that all instances share.
    """

    name: str
    recipes: tuple[tuple[int, ...], ...]
    values: tuple[tuple[int, ...], ...]
    forward: int
    backward: int
    made_forward: int
    made_backward: int
    wires: tuple[tuple[Wire | None, ...], ...]

    @property
    def times(self) -> int:
        """Instances in a row."""
        return len(self.recipes)

    @property
    def passed_down(self) -> tuple[int, ...]:
        """Slots that the forward of a later instance reads."""
        return self._slots(range(self.forward), -1)

    @property
    def passed_up(self) -> tuple[int, ...]:
        """Slots that the backward of an earlier instance reads: gradients."""
        return self._slots(range(self.forward, self.forward + self.backward), 1)

    @property
    def saved(self) -> tuple[int, ...]:
        """Slots that a forward makes and a backward reads."""
        wires = (w for row in self.wires[self.forward : self.forward + self.backward] for w in row)
        return tuple(sorted({w.slot for w in wires if w is not None and w.slot < self.made_forward}))

    @property
    def owned(self) -> range:
        """Slots that the caller gives: the instance's own parameters, buffers and inputs."""
        return range(self.made_forward + self.made_backward, len(self.values[0]))

    def _slots(self, recipes: Iterable[int], direction: int) -> tuple[int, ...]:
        wires = (w for k in recipes for w in self.wires[k])
        return tuple(sorted({w.slot for w in wires if w is not None and w.step * direction > 0}))


def references(recipe: Recipe) -> tuple[int, ...]:
    """The values that a recipe refers to besides its outputs: what its reads name, then the state that it replays."""
    read = tuple(r.value for r in recipe.reads)
    replays = recipe.effect is Effect.PURE and recipe.state is not None
    return (*read, recipe.state) if replays and recipe.state is not None else read


def block_named(graph: Graph, blocks: Iterable[Block], name: str) -> Block:
    """One of a graph's blocks by its name.

    Raises:
        PlanError: if there is none; names those that there are.
    """
    found = {b.name: b for b in blocks}
    if name not in found:
        listed = ", ".join(f"{b.name!r} ({b.times} in a row)" for b in found.values())
        raise PlanError(
            f"{graph.name or 'this graph'} has no block {name!r}; layers that it repeats: {listed or 'none'}. "
            "A layer is found where at least two in a row have the same operators on tensors of the same shapes."
        )
    return found[name]
