"""Statements -> lines of Python: names of values and objects, calls, views in the argument list, `del`.

No text of a graph gets into the source but what `_word` leaves of an operator's name: values are numbers, and strings,
keywords, devices and constants are objects in the function's globals, whatever characters they have.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lowtide.device import generator
from lowtide.device.calls import constant, resolve
from lowtide.errors import IllegalPlan
from lowtide.ir.call import Arg, Const, Held, Items, NamedArg, Read, Ref, View
from lowtide.ir.graph import Effect, Graph, Recipe
from lowtide.ir.interface import Result, Slot, Token
from lowtide.ir.schedule import DEVICE, Drop, Fetch, Run, Send, memory_of
from lowtide.runtime.custom_operators import checked, expected_of
from lowtide.runtime.moves import HostOutput
from lowtide.runtime.statements import Name, Names, Statement

_LONGEST = 60  # letters of an operator's name
_DEEPEST = 50  # calls in one another; the interpreter's parser gives up at 200


class Writer:
    """Source text under construction, with the objects that it names.

    Arguments:
        graph: what the schedule speaks of.
        held: arguments without a text form, by the index that `Held` names.
        marked: whether what allocates says its number to the arena first.
        observed: whether runs on the device show what they read and made.
    """

    def __init__(self, graph: Graph, held: Sequence[Any], *, marked: bool = False, observed: bool = False) -> None:
        self.graph = graph
        self.held = held
        self.marked = marked
        self.observed = observed
        self.names = Names(len(graph.values))
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"_save": generator.save, "_replay": generator.replay}
        self._named: dict[tuple[str, Any], str] = {}
        self._passing: list[str] = []
        self._places: dict[Name, int] | None = None

    @contextlib.contextmanager
    def apart(self, places: dict[Name, int]) -> Iterator[list[str]]:
        """Inside, lines go to a list of their own, and values are named by place: in the order of their appearance.

        Arguments:
            places: filled, name -> place.
        """
        outer, self.lines, self._places = self.lines, [], places
        try:
            yield self.lines
        finally:
            self.lines, self._places = outer, None

    def name(self, name: Name) -> str:
        """The name of a value, `v7`, of its copy on the host, `host7`, or of its prefetch, `got7`."""
        kind, value = divmod(name, max(1, self.names.values))
        number = value if self._places is None else self._places.setdefault(name, len(self._places))
        return f"{('v', 'host', 'got')[kind]}{number}"

    def transfer(self, name: Name) -> str:
        """The transfer that writes the bytes behind a name, and may be in progress."""
        return f"{self.name(name)}.written" if name < 2 * self.names.values else self.name(name)

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
        return self.literal(arg)

    def literal(self, constant: Any) -> str:
        """A constant as an expression: numbers that Python can read are written, anything else is an object."""
        if constant is None or type(constant) in (bool, int) or (type(constant) is float and math.isfinite(constant)):
            return repr(constant)
        return self.object("k", (type(constant), constant), lambda: constant)

    def arguments(self, args: Sequence[Arg], kwargs: Sequence[NamedArg], refs: Sequence[str]) -> str:
        """A whole argument list."""
        passed = [self.argument(a, refs) for a in args]
        keyed = ", ".join(f"{self.literal(k)}: {self.argument(v, refs)}" for k, v in kwargs)
        return ", ".join((*passed, f"**{{{keyed}}}") if keyed else passed)

    def view(self, view: View, base: str) -> str:
        """One view step as an expression."""
        call = f"{self.operator(view.op)}({self.arguments(view.args, view.kwargs, [base])})"
        return call if view.pick is None else f"{call}[{int(view.pick)}]"

    def operator(self, op: str) -> str:
        """The name of an operator in the function's globals."""
        return self.object(f"{_word(op.split('.')[-2 if op.count('.') > 1 else -1])}_", op, lambda: resolve(op))

    def _operator_of(self, recipe: Recipe) -> str:
        """The name of a recipe's operator; of a custom one, with a look at what it returns."""
        expected = expected_of(self.graph, recipe)
        if not expected:
            return self.operator(recipe.op)
        return self.object("custom", (recipe.op, expected), lambda: checked(recipe.op, resolve(recipe.op), expected))

    def read(self, read: Read, name: Name | None = None) -> str:
        """A tensor as it is passed: the value's name through its views.

        A chain of views too long for one expression passes through locals, which end with the statement.

        Arguments:
            name: of the value, where it is not on the device.
        """
        text = self.tensor(read.value if name is None else name)
        for depth, view in enumerate(read.views, 1):
            text = self.view(view, text)
            if depth % _DEEPEST == 0:
                self._passing.append(f"w{len(self._passing)}")
                self.lines.append(f"    {self._passing[-1]} = {text}")
                text = self._passing[-1]
        return text

    def write(self, statements: Sequence[Statement], position: Callable[[int], str]) -> None:
        """The lines of some statements.

        Arguments:
            position: how the n-th among them that has a number is numbered, as an expression.
        """
        count = 0
        for statement in statements:
            at = position(count)
            count += statement.is_numbered
            self.lines += [f"    _wait({self.transfer(name)})" for name in statement.waits]
            match statement.step:
                case Run(recipe=recipe) as step:
                    if memory_of(self.graph.recipes[recipe].engine) != DEVICE:
                        self._host_run(statement, step, at)
                    else:
                        if self.observed:
                            self._show("_reads", self.graph.recipes[recipe].read_values, at)
                        self._mark(at)
                        self._run(step)
                        if self.observed:
                            self._show("_made", step.keep, at)
                case Send(value=value):
                    self._send(statement, value, at)
                case Fetch(value=value):
                    self._mark(at)
                    got = self.name(statement.binds[1]) if statement.is_named else "_"
                    source = self.name(self.names.on_host(value))
                    size_B = self.graph.values[value].size_B
                    call = f"_fetch({source}, {size_B}, {at}{self._after(statement)})"
                    self.lines.append(f"    {self.name(value)}, {got} = {call}")
                case Drop():
                    pass
            # The tensor of a value that was overwritten shares its storage with the output, and would keep that alive.
            self.lines += [f"    del {self.name(name)}" for name in statement.ends]
            self.lines += [f"    del {name}" for name in self._passing]
            self._passing.clear()

    def _mark(self, at: str) -> None:
        if self.marked:
            self.lines.append(f"    _at({at})")

    def _show(self, call: str, values: Sequence[int], at: str) -> None:
        """Hands values to who observes; a tuple that lives no longer than the call."""
        self.lines.append(f"    {call}({at}, ({''.join(f'{self.name(v)}, ' for v in values).rstrip()}))")

    def _after(self, statement: Statement) -> str:
        """The argument that says what an engine waits for, if anything."""
        return f", ({''.join(f'{self.transfer(n)}, ' for n in statement.after).rstrip()})" if statement.after else ""

    def _send(self, statement: Statement, value: int, at: str) -> None:
        size_B, target = self.graph.values[value].size_B, self.name(self.names.on_host(value))
        tail = f"{size_B}, {at}{self._after(statement)})"
        if statement.ends:
            self.lines.append(f"    {target} = _send_home({self.name(value)}, {self.name(statement.ends[0])}, {tail}")
        else:
            self.lines.append(f"    {target} = _send({self.name(value)}, {tail}")

    def _host_run(self, statement: Statement, step: Run, at: str) -> None:
        """A run concurrent with compute: an expression in the values' names, for their tensors in host memory."""
        recipe = self.graph.recipes[step.recipe]
        reads = recipe.read_values
        if recipe.state is not None or not step.keep or any(len(r.views) >= _DEEPEST for r in recipe.reads):
            raise IllegalPlan(f"{recipe.op} cannot run on the host: it draws numbers, keeps nothing, or sees too deep")
        outputs = []
        for position, value in enumerate(recipe.outputs):
            if value in step.keep:
                takes = next((reads.index(t.value) for t in recipe.consumes if t.output == position), None)
                outputs.append(self._host_output(value, recipe.paths[position], takes))
        arguments = self.arguments(recipe.args, recipe.kwargs, [self.read(r) for r in recipe.reads])
        work = f"lambda {', '.join(self.name(v) for v in reads)}: {self.operator(recipe.op)}({arguments})"
        copies = "".join(f"{self.name(self.names.on_host(v))}, " for v in reads).rstrip()
        kept = "".join(f"{o}, " for o in outputs).rstrip()
        targets = "".join(f"{self.name(n)}, " for n in statement.binds).rstrip()
        self.lines.append(f"    {targets} = _host_run({work}, ({copies}), ({kept}), {at}{self._after(statement)})")

    def _host_output(self, value: int, path: tuple[int, ...], takes: int | None) -> str:
        found = self.graph.values[value]
        if found.geometry is None:
            raise IllegalPlan(f"{found.name} has no geometry: it cannot be made on the host")
        output = HostOutput(path, found.geometry, found.size_B, takes)
        return self.object("o", output, lambda: output)

    def _run(self, step: Run) -> None:
        """The statements of one run."""
        recipe = self.graph.recipes[step.recipe]
        reads = [self.read(r) for r in recipe.reads]
        call = f"{self._operator_of(recipe)}({self.arguments(recipe.args, recipe.kwargs, reads)})"
        tensors = [v for v in recipe.outputs if v != recipe.state]
        keep = set(step.keep)
        before, indent = "", "    "
        if recipe.state is not None:
            device = self._device(recipe)
            if recipe.effect is Effect.RANDOM and recipe.state in keep:
                self.lines.append(f"    {self.name(recipe.state)} = _save({self.literal(device)})")
            elif recipe.effect is Effect.PURE:
                before, indent = f"    with _replay({self.literal(device)}, {self.name(recipe.state)}):", "        "
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
                self.lines.append(f"    {self.name(value)} = _{''.join(f'[{int(i)}]' for i in path)}")
        self.lines.append("    del _")

    def _device(self, recipe: Recipe) -> str:
        geometry = self.graph.values[recipe.outputs[0]].geometry
        return geometry.device if geometry is not None else "cpu"

    def tensor(self, name: Name) -> str:
        """The tensor behind the name of a value, or of its copy on the host."""
        return self.name(name) if name < self.names.values else f"{self.name(name)}.tensor"

    def result(self, result: Result, carried: set[Name], written: set[Name]) -> str:
        """One element of what a segment returns; its slots stand for names."""
        if isinstance(result, Token):
            return "_token"
        if isinstance(result, Slot):
            if result.value is None or result.value not in carried or result.value in written:
                return "_empty"
            written.add(result.value)
            return self.tensor(result.value)
        if isinstance(result, Read):
            return self.read(result, self.names.within(self.graph.values[result.value].memory, result.value))
        return self.literal(result)


def _word(text: str) -> str:
    """What a name has of letters, digits and underscores of ASCII, for people who read a traceback."""
    return re.sub(r"[^A-Za-z0-9_]", "_", f"_{text}" if text[:1].isdigit() else text)[:_LONGEST]
