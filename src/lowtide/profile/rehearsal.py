"""One implementation run next to the program's own, on the same made-up inputs, and the results compared bit for bit.

What both read has to fit together: an output that one of them reads must be the output of the input that the other
reads. So the program's recipes that lead from one to the other run as well, once, before both.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec
import torch

from lowtide.device import generator
from lowtide.device.calls import apply_view, arguments, pick, resolve
from lowtide.device.in_place_layouts import copy_with_gaps
from lowtide.errors import FaintScale
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, Graph, Role
from lowtide.ops.catalogue import kernels
from lowtide.profile.measurement import output_paths
from lowtide.profile.samples import content
from lowtide.profile.signature import Signature, leaves

_FARTHEST = 4  # recipes between two values that are looked at for how they depend on each other
_GIVEN = frozenset({Role.PARAMETER, Role.BUFFER, Role.CONSTANT})
Tensors = dict[int, torch.Tensor]


class Rehearsal:
    """Two implementations of the same values: what has to run to compare them.

    Arguments:
        graph: with geometries.
        own: recipes of the program.
        other: recipes that stand in for them.
    """

    def __init__(self, graph: Graph, own: Sequence[int], other: Sequence[int]) -> None:
        self.graph = graph
        self.own, self.other = tuple(own), tuple(other)
        made = {v for r in own for v in graph.recipes[r].outputs}
        outside = self._outside(own) | (self._outside(other) - made)
        self.before = self._between(outside, made)
        self.inputs = sorted((outside | self._outside(self.before)) - self._made(self.before))
        overwritten = {t.value for r in (*own, *other) for t in graph.recipes[r].consumes}
        self.compared = sorted(made & self._made(other) - overwritten)

    @property
    def devices(self) -> set[str]:
        """Where the program's recipes run."""
        return {self._device(v) for r in self.own for v in self.graph.recipes[r].outputs[:1]}

    @property
    def key(self) -> str:
        """Names what is run: operators, arguments, geometries, and how they depend on each other."""
        return self._digest(lambda geometry: geometry, exact=True)

    @property
    def likeness(self) -> str:
        """The same for any sizes: equal for two batches of one model."""
        return self._digest(lambda g: None if g is None else (g.dtype, len(g.shape), g.device), exact=False)

    @property
    def hangs_on_sizes(self) -> bool:
        """Whether what is exact at one size need not be at another."""
        own = kernels()
        found = (own.get(self.graph.recipes[r].op) for r in self.other)
        return any(kernel is not None and kernel.by_size for kernel in found)

    def difference(self, held: Sequence[Any]) -> str:
        """Runs both, and says what is not the same; empty where nothing differs.

        Floats are of both signs, with zeros among them; where that leaves results that are not finite, and could hide
        something, or scales that a normalisation cannot be turned back with, both run on positive ones.

        Arguments:
            held: what `Held` arguments stand for.

        Raises:
            Exception: whatever an operator raises on inputs that are valid but meaningless.
        """
        if not self.compared:
            return "it makes nothing that could be compared"
        for positive in (False, True):
            try:
                expected, found = self._both(held, positive)
            except FaintScale:
                if positive:
                    raise
                continue
            for value in self.compared:
                if reason := unlike(expected[value], found[value]):
                    return f"{self.graph.values[value].name}: {reason}"
            if all(bool(t.isfinite().all()) for t in expected.values() if t.is_floating_point()):
                break
        return ""

    def _both(self, held: Sequence[Any], positive: bool) -> tuple[Tensors, Tensors]:
        """What the program's recipes make of made-up inputs, and what the others make of them."""
        given = {v: self._content(v, positive) for v in self.inputs}
        for r in self.before:
            self._run(r, given, held)
        overwritten = {t.value for r in self.own for t in self.graph.recipes[r].consumes}
        overwritten |= {t.value for r in self.other for t in self.graph.recipes[r].consumes}
        again = {v: copy_with_gaps(t) if v in overwritten else t for v, t in given.items()}
        states = {device: generator.save(device) for device in self.devices}
        expected = self._carried_out(self.own, given, held)
        for device, state in states.items():
            generator.restore(device, state)
        return expected, self._carried_out(self.other, again, held)

    def _carried_out(self, recipes: Iterable[int], there: Tensors, held: Sequence[Any]) -> Tensors:
        """Runs some recipes, each after those that make what it reads, and releases what is no longer read."""
        order = self._makers_first(recipes)
        last = {v: r for r in order for v in self.graph.recipes[r].read_values}
        for r in order:
            self._run(r, there, held)
            for value in [v for v, reader in last.items() if reader == r and v not in self.compared]:
                there.pop(value, None)
        return {v: there[v] for v in self.compared}

    def _run(self, number: int, there: Tensors, held: Sequence[Any]) -> None:
        """Runs one recipe as generated code does."""
        recipe = self.graph.recipes[number]
        refs = []
        for read in recipe.reads:
            tensor: Any = there[read.value]
            for view in read.views:
                tensor = apply_view(view, tensor, held)
            refs.append(tensor)
        args, kwargs = arguments(recipe.args, recipe.kwargs, refs, held)
        device = self._device(recipe.outputs[0])
        if recipe.state is not None and recipe.effect is not Effect.PURE:
            there[recipe.state] = generator.save(device)
        replays = recipe.state is not None and recipe.effect is Effect.PURE
        with generator.replay(device, there[recipe.state or 0]) if replays else contextlib.nullcontext():
            result = resolve(recipe.op)(*args, **kwargs)
        tensors = [v for v in recipe.outputs if v != recipe.state]
        for value, path in zip(tensors, output_paths(recipe), strict=True):
            there[value] = pick(result, path)

    def _device(self, value: int) -> str:
        geometry = self.graph.values[value].geometry
        return "cpu" if geometry is None else geometry.device

    def _makers_first(self, recipes: Iterable[int]) -> list[int]:
        pending, order = list(dict.fromkeys(recipes)), list[int]()
        waiting = self._made(pending)
        while pending:
            ready = [r for r in pending if waiting.isdisjoint(self.graph.recipes[r].read_values)] or pending[:1]
            order += ready
            waiting -= self._made(ready)
            pending = [r for r in pending if r not in ready]
        return order

    def _outside(self, recipes: Iterable[int]) -> set[int]:
        """What some recipes read and none of them makes."""
        recipes = list(recipes)
        return {v for r in recipes for v in self.graph.recipes[r].read_values} - self._made(recipes)

    def _made(self, recipes: Iterable[int]) -> set[int]:
        return {v for r in recipes for v in self.graph.recipes[r].outputs}

    def _between(self, outside: Collection[int], made: Collection[int]) -> tuple[int, ...]:
        """Recipes of the program's forward by which some of the values outside follow from others, in its order."""
        graph = self.graph
        maker = {v: r for r in graph.program for v in graph.recipes[r].outputs if graph.recipes[r].segment == 0}
        targets = {v for v in outside if graph.values[v].role not in _GIVEN}
        found: set[int] = set()

        def leads(value: int, left: int) -> bool:
            """Whether a value follows from another one outside; the recipes in between are found."""
            recipe = maker.get(value)
            if recipe is None or value in made or not left or graph.recipes[recipe].effect is Effect.OPAQUE:
                return False
            sources = [v for v in graph.recipes[recipe].read_values if v in targets or leads(v, left - 1)]
            shared = len(targets.intersection(graph.recipes[recipe].outputs)) > 1
            if sources or shared:
                found.add(recipe)
            return bool(sources)

        for value in sorted(targets):
            leads(value, _FARTHEST)
        place = {r: i for i, r in enumerate(graph.program)}
        return tuple(sorted(found, key=lambda r: place[r]))

    def _content(self, value: int, positive: bool) -> torch.Tensor:
        geometry = self.graph.values[value].geometry
        if self.graph.values[value].role is Role.GENERATOR:
            return generator.save(self._device(self.compared[0]))
        assert geometry is not None, "capture gives every value a geometry"
        readers = []
        for r in (*self.before, *self.own, *self.other):
            recipe = self.graph.recipes[r]
            reads = [read.geometry for read in recipe.reads]
            known = tuple(g for g in reads if g is not None)
            places = [i for i, read in enumerate(recipe.reads) if read.value == value]
            if places and len(known) == len(reads):
                readers += [(Signature(recipe.op, recipe.args, recipe.kwargs, known), i) for i in places]
        return content(geometry, readers, seed=self.inputs.index(value), positive=positive)

    def _digest(self, seen: Callable[[Geometry | None], Any], *, exact: bool) -> str:
        ids: dict[int, int] = {}
        facts: list[Any] = [[len(self.before), len(self.own)]]
        for r in (*self.before, *self.own, *self.other):
            recipe = self.graph.recipes[r]
            for v in (*recipe.read_values, *recipe.outputs):
                ids.setdefault(v, len(ids))
            reads = [(ids[x.value], seen(x.geometry), x.views if exact else len(x.views)) for x in recipe.reads]
            arguments_ = (recipe.args, recipe.kwargs) if exact else [type(a).__name__ for a in leaves(recipe.args)]
            outputs = [ids[v] for v in recipe.outputs]
            facts.append((recipe.op, reads, arguments_, outputs, recipe.paths, recipe.effect, len(recipe.consumes)))
        facts.append([(ids[v], seen(self.graph.values[v].geometry)) for v in self.inputs])
        return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:32]


def unlike(one: torch.Tensor, other: torch.Tensor) -> str:
    """How two tensors differ; empty where dtype, shape, strides and every bit that counts are the same."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{one.dtype} {tuple(one.shape)} and {other.dtype} {tuple(other.shape)}"
    if any(n > 1 and a != b for n, a, b in zip(one.shape, one.stride(), other.stride(), strict=True)):
        return f"strides {one.stride()} and {other.stride()}"
    same = (one == other) | ((one != one) & (other != other))
    return "" if bool(same.all()) else f"{int((~same).sum())} of {same.numel()} elements"
