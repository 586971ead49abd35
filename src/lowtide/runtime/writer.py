"""Steps of a schedule -> lines of Python: names of values and objects, calls, views in the argument list, `del`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lowtide.device import generator
from lowtide.device.calls import constant, resolve
from lowtide.errors import IllegalPlan
from lowtide.ir.call import Arg, Const, Held, Items, NamedArg, Read, Ref, View
from lowtide.ir.graph import Effect, Graph, Recipe
from lowtide.ir.interface import Result, Slot, Token
from lowtide.ir.schedule import Drop, Run, Step

_DEEPEST = 50  # calls in one another; the interpreter's parser gives up at 200


class Writer:
    """Source text under construction, with the objects that it names.

    Arguments:
        graph: what the schedule speaks of.
        held: arguments without a text form, by the index that `Held` names.
    """

    def __init__(self, graph: Graph, held: Sequence[Any]) -> None:
        self.graph = graph
        self.held = held
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"_save": generator.save, "_replay": generator.replay}
        self._named: dict[tuple[str, Any], str] = {}
        self._passing: list[str] = []
        self._places: dict[int, int] | None = None

    @contextlib.contextmanager
    def apart(self, places: dict[int, int]) -> Iterator[list[str]]:
        """Inside, lines go to a list of their own, and values are named by place: in the order of their appearance.

        Arguments:
            places: filled, value -> place.
        """
        outer, self.lines, self._places = self.lines, [], places
        try:
            yield self.lines
        finally:
            self.lines, self._places = outer, None

    def name(self, value: int) -> str:
        """A value's name."""
        return f"v{value}" if self._places is None else f"v{self._places.setdefault(value, len(self._places))}"

    def object(self, prefix: str, key: Any, make: Callable[[], Any]) -> str:
        """A name in the function's globals for an object, the same one for the same key."""
        if (prefix, key) not in self._named:
            name = f"{prefix}{len(self._named)}"
            self._named[prefix, key] = name
            self.scope[name] = make()
        return self._named[prefix, key]

    def argument(self, arg: Arg, refs: Sequence[str]) -> str:
        """An argument as an expression."""
        if isinstance(arg, Ref):
            return refs[arg.index]
        if isinstance(arg, Items):
            return "[" + ", ".join(self.argument(a, refs) for a in arg.items) + "]"
        if isinstance(arg, Const):
            return self.object("c", arg, lambda: constant(arg))
        if isinstance(arg, Held):
            return self.object("h", arg.index, lambda: self.held[arg.index])
        return repr(arg)

    def arguments(self, args: Sequence[Arg], kwargs: Sequence[NamedArg], refs: Sequence[str]) -> str:
        """A whole argument list."""
        keyed = (f"{k}={self.argument(v, refs)}" for k, v in kwargs)
        return ", ".join((*(self.argument(a, refs) for a in args), *keyed))

    def view(self, view: View, base: str) -> str:
        """One view step as an expression."""
        call = f"{self.operator(view.op)}({self.arguments(view.args, view.kwargs, [base])})"
        return call if view.pick is None else f"{call}[{view.pick}]"

    def operator(self, op: str) -> str:
        """The name of an operator in the function's globals."""
        short = "".join(c if c.isalnum() else "_" for c in op.split(".")[-2 if op.count(".") > 1 else -1])
        return self.object(f"{short}_", op, lambda: resolve(op))

    def read(self, read: Read) -> str:
        """A tensor as it is passed: the value's name through its views.

        A chain of views too long for one expression passes through locals, which end with the statement.
        """
        text = self.name(read.value)
        for depth, view in enumerate(read.views, 1):
            text = self.view(view, text)
            if depth % _DEEPEST == 0:
                self._passing.append(f"w{len(self._passing)}")
                self.lines.append(f"    {self._passing[-1]} = {text}")
                text = self._passing[-1]
        return text

    def steps(self, steps: Sequence[Step], position: Callable[[int], str] | None) -> None:
        """The statements of some steps.

        Arguments:
            position: how the n-th run among them is numbered, as an expression; None where nobody asks.
        """
        runs = 0
        for step in steps:
            if isinstance(step, Run):
                if position is not None:
                    self.lines.append(f"    _at({position(runs)})")
                runs += 1
                self._run(step)
                # The value's tensor shares its storage with the output now, and would keep that alive.
                self.lines += [f"    del {self.name(t.value)}" for t in self.graph.recipes[step.recipe].consumes]
                self.lines += [f"    del {name}" for name in self._passing]
                self._passing.clear()
            elif isinstance(step, Drop):
                self.lines.append(f"    del {self.name(step.value)}")
            else:
                raise IllegalPlan(f"{type(step).__name__} steps need a copy engine; this executor has none")

    def _run(self, step: Run) -> None:
        """The statements of one run."""
        recipe = self.graph.recipes[step.recipe]
        reads = [self.read(r) for r in recipe.reads]
        call = f"{self.operator(recipe.op)}({self.arguments(recipe.args, recipe.kwargs, reads)})"
        tensors = [v for v in recipe.outputs if v != recipe.state]
        keep = set(step.keep)
        before, indent = "", "    "
        if recipe.state is not None:
            device = self._device(recipe)
            if recipe.effect is Effect.RANDOM and recipe.state in keep:
                self.lines.append(f"    {self.name(recipe.state)} = _save({device!r})")
            elif recipe.effect is Effect.PURE:
                before, indent = f"    with _replay({device!r}, {self.name(recipe.state)}):", "        "
        if before:
            self.lines.append(before)
        if recipe.paths == ((),):
            self.lines.append(f"{indent}{self.name(tensors[0]) if tensors[0] in keep else '_'} = {call}")
            if tensors[0] not in keep:
                self.lines.append("    del _")
            return
        self.lines.append(f"{indent}_ = {call}")
        for value, path in zip(tensors, recipe.paths, strict=True):
            if value in keep:
                self.lines.append(f"    {self.name(value)} = _{''.join(f'[{i}]' for i in path)}")
        self.lines.append("    del _")

    def _device(self, recipe: Recipe) -> str:
        geometry = self.graph.values[recipe.outputs[0]].geometry
        return geometry.device if geometry is not None else "cpu"

    def result(self, result: Result, carried: set[int], written: set[int]) -> str:
        """One element of what a segment returns."""
        if isinstance(result, Token):
            return "_token"
        if isinstance(result, Slot):
            if result.value is None or result.value not in carried or result.value in written:
                return "_empty"
            written.add(result.value)
            return self.name(result.value)
        if isinstance(result, Read):
            return self.read(result)
        return repr(result)
