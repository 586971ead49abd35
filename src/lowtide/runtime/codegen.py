"""Schedule -> Python source: one straight-line function per segment, one statement per step.

One name per value, operators called directly, results of several unpacked at once, `del` exactly where the
schedule drops. Nothing is looked up while it runs. Views are made in the argument list, so that they die with the
call. Where allocations have planned addresses, every run says its number first, so that a departure from the plan
costs one operator and not the rest of the segment.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowtide.device import arena
from lowtide.device.calls import constant, resolve
from lowtide.errors import IllegalPlan
from lowtide.ir.call import Arg, Const, Held, Items, NamedArg, Read, Ref, View
from lowtide.ir.graph import Effect, Graph, Recipe
from lowtide.ir.interface import Interface, Result, Slot, Token
from lowtide.ir.schedule import Boundary, Drop, Run, Schedule, Step
from lowtide.runtime import generator

Segment = Callable[[list[Any]], tuple[Any, ...]]
_SERIAL = itertools.count(1)
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

        A chain of views too long for one expression passes through locals, which `let_go` ends.
        """
        text = f"v{read.value}"
        for depth, view in enumerate(read.views, 1):
            text = self.view(view, text)
            if depth % _DEEPEST == 0:
                self._passing.append(f"w{len(self._passing)}")
                self.lines.append(f"    {self._passing[-1]} = {text}")
                text = self._passing[-1]
        return text

    def let_go(self) -> None:
        """Ends the locals that views passed through."""
        self.lines += [f"    del {name}" for name in self._passing]
        self._passing.clear()

    def run(self, step: Run) -> None:
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
                self.lines.append(f"    v{recipe.state} = _save({device!r})")
            elif recipe.effect is Effect.PURE:
                before, indent = f"    with _replay({device!r}, v{recipe.state}):", "        "
        if before:
            self.lines.append(before)
        if recipe.paths == ((),):
            self.lines.append(f"{indent}{f'v{tensors[0]}' if tensors[0] in keep else '_'} = {call}")
            if tensors[0] not in keep:
                self.lines.append("    del _")
            return
        self.lines.append(f"{indent}_ = {call}")
        for value, path in zip(tensors, recipe.paths, strict=True):
            if value in keep:
                self.lines.append(f"    v{value} = _{''.join(f'[{i}]' for i in path)}")
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
            return f"v{result.value}"
        if isinstance(result, Read):
            return self.read(result)
        return repr(result)


def carried_into(graph: Graph, steps: Sequence[Step], segment: int) -> set[int]:
    """Values that a segment uses from before its boundary: read or handed over there, not made or given there."""
    made = {v.id for v in graph.values if v.arrives == segment}
    used: set[int] = set()
    for step in steps:
        if isinstance(step, Run):
            recipe = graph.recipes[step.recipe]
            used.update(v for v in recipe.read_values if v not in made)
            made.update(step.keep)
    used.update(v.id for v in graph.values if v.leaves == segment and v.id not in made)
    return used


def split(schedule: Schedule, segments: int) -> list[list[Step]]:
    """The steps of each segment, boundaries left out."""
    parts: list[list[Step]] = [[] for _ in range(segments)]
    here = 0
    for step in schedule.steps:
        if isinstance(step, Boundary):
            here = step.segment
        else:
            parts[here].append(step)
    return parts


def generate(
    graph: Graph,
    schedule: Schedule,
    interfaces: Sequence[Interface],
    held: Sequence[Any],
    token: torch.Tensor,
    empty: torch.Tensor,
    *,
    marked: bool = False,
) -> tuple[Segment, ...]:
    """Compiles one function per segment.

    Arguments:
        interfaces: per segment, what the caller passes and expects.
        held: arguments without a text form.
        token: the tensor that names the plan.
        empty: what fills unused slots.
        marked: whether every run says its number to the arena.

    Returns:
        Functions that take a boxed list, which they empty, and return a tuple.
    """
    parts = split(schedule, len(graph.segments))
    carried = [carried_into(graph, part, i) for i, part in enumerate(parts)]
    functions = []
    for index, (steps, interface) in enumerate(zip(parts, interfaces, strict=True)):
        later: set[int] = set().union(*carried[index + 1 :]) if index + 1 < len(parts) else set()
        writer = Writer(graph, held)
        writer.scope |= {"_token": token, "_empty": empty, **{f"v{v}": held[at] for v, at in interface.constants}}
        _arguments(writer, interface, steps, carried[index], graph, index)
        runs = itertools.count()
        if marked:
            writer.scope["_at"] = arena.fast_at()
        for step in steps:
            if isinstance(step, Run):
                if marked:
                    writer.lines.append(f"    _at({next(runs)})")
                writer.run(step)
                writer.let_go()
            elif isinstance(step, Drop):
                writer.lines.append(f"    del v{step.value}")
            else:
                raise IllegalPlan(f"{type(step).__name__} steps need a copy engine; this executor has none")
        written: set[int] = set()
        results = ", ".join(writer.result(r, later, written) for r in interface.results)
        writer.lines.append(f"    return ({results}{',' if interface.results else ''})")
        functions.append(_compile(writer, graph, index))
    return tuple(functions)


def _arguments(
    writer: Writer, interface: Interface, steps: Sequence[Step], carried: set[int], graph: Graph, index: int
) -> None:
    """Unpacks what the segment uses; whatever else it is given dies when the list is emptied."""
    given: set[int] = set()
    returned = {r.value for r in interface.results if isinstance(r, Read)}
    arriving = {v.id for v in graph.values if v.arrives == index}
    dropped = {s.value for s in steps if isinstance(s, Drop)}
    slots = {r.value for r in interface.results if isinstance(r, Slot) and r.value is not None}
    used = carried | returned | slots | (arriving & (dropped | _reads(graph, steps)))
    for position, value in enumerate(interface.arguments):
        if value is not None and value in used and value not in given:
            given.add(value)
            writer.lines.append(f"    v{value} = args[{position}]")
    writer.lines.append("    args.clear()")


def _reads(graph: Graph, steps: Sequence[Step]) -> set[int]:
    return {v for s in steps if isinstance(s, Run) for v in graph.recipes[s.recipe].read_values}


def _compile(writer: Writer, graph: Graph, index: int) -> Segment:
    name = graph.segments[index].name
    source = "\n".join((f"def {name}(args):", *writer.lines, ""))
    file = f"<lowtide {name} {graph.key} #{next(_SERIAL)}>"
    # Registered so that a traceback through generated code shows its lines.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), writer.scope)
    return writer.scope[name]  # type: ignore[no-any-return]
