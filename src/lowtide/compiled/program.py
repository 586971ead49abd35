"""One program of Inductor's, read: what it is given, which kernels it calls on which buffers, what it returns.

The program is Python text that Inductor wrote for itself. It is read as a syntax tree, statement by statement, and
nothing of it is copied anywhere: what comes out is data. A statement that is not understood is refused with its line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.device.compiled_kernels import Buffer, CurrentStream, Kernel, Window
from lowtide.device.inductor import IN_PLACE, InductorProgram
from lowtide.device.operators import Overload
from lowtide.errors import UnsupportedOperator


@dataclass(frozen=True)
class Seen:
    """A tensor of the program: a buffer, an input or a constant, through a window."""

    name: str
    window: Window | None = None


@dataclass(frozen=True)
class Plain:
    """An argument that is no tensor."""

    value: Any


@dataclass(frozen=True)
class Several:
    """A list argument with tensors in it."""

    items: tuple[Argument, ...]


Argument = Seen | Plain | Several


@dataclass(frozen=True, eq=False)
class KernelCall:
    """One call of a program.

    Arguments:
        kernel: what is called; its `call` is an `Overload` where it is an operator of torch's.
        writes: buffers into which it writes, in the order of its arguments.
        result: name of what it returns, where that is used.
        picks: further names for parts of the result, by the path to each.
        layouts: size and strides that the program checks of such a name.
        traces: stack traces of the operators in it.
    """

    kernel: Kernel
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]
    writes: tuple[str, ...] = ()
    result: str | None = None
    picks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    layouts: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    traces: tuple[str, ...] = ()

    @property
    def reads(self) -> Iterator[str]:
        """Names of the tensors that it is given and does not only write."""
        yield from (n for n in _names((*self.arguments, *(a for _, a in self.keywords))) if n not in self.writes)


@dataclass(frozen=True, eq=False)
class Program:
    """What a program does.

    Arguments:
        inputs: names of what it is given, in order.
        buffers: what it allocates for kernels to write into.
        constants: tensors that live with it, by name.
        calls: in order.
        returns: tensors; None for nothing, numbers as they are.
        in_place: buffers that a kernel may write over something that it reads, with the name of that.
    """

    inputs: tuple[str, ...]
    buffers: dict[str, Buffer]
    constants: dict[str, torch.Tensor]
    calls: tuple[KernelCall, ...]
    returns: tuple[Argument, ...]
    in_place: frozenset[tuple[str, str]] = frozenset()


def _names(arguments: tuple[Argument, ...]) -> Iterator[str]:
    for argument in arguments:
        if isinstance(argument, Seen):
            yield argument.name
        elif isinstance(argument, Several):
            yield from _names(argument.items)


def read_program(program: InductorProgram) -> Program:
    """Reads a program.

    Raises:
        UnsupportedOperator: for a statement that is not understood, or sizes that are no numbers.
    """
    return _Reader(program).read()


_CHECKS = frozenset({"assert_size_stride", "assert_alignment", "args.clear", "torch.cuda.set_device"})
_NEW = re.compile(r"empty_strided(_cpu|_cuda)?$")
_HANDLE = re.compile(r"#\s*\[Provenance debug handles\]\s*(\S+)")
_REMEDY = 'use compiler="eager", which plans this model\'s operators'
_SYMBOLIC = re.compile(r"^(s|u|ks|i)\d+$")


class _Reader:
    """A program as far as it has been read."""

    def __init__(self, program: InductorProgram) -> None:
        self.names, self.traces = program.names, program.stack_traces
        self.lines = program.source.splitlines()
        self.tree = ast.parse(program.source)
        self.kernels: dict[str, tuple[Kernel, tuple[bool, ...]]] = {}
        self.inputs: tuple[str, ...] = ()
        self.buffers: dict[str, Buffer] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.seen: dict[str, Seen] = {}  # names of buffers, inputs, and windows on them
        self.streams: dict[str, int] = {}  # names of streams, and the device of each
        self.calls: list[KernelCall] = []
        self.returns: tuple[Argument, ...] = ()
        self.handles: list[str] = []

    def read(self) -> Program:
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.targets) == 1:
                self._definition(node)
        function = next((n for n in ast.walk(self.tree) if isinstance(n, ast.FunctionDef) and n.name == "call"), None)
        if function is None:
            raise UnsupportedOperator(f"Inductor's program has no function `call`: {_REMEDY}")
        self._statements(function.body)
        pairs = re.findall(rf"^\s*# {re.escape(IN_PLACE)} (\w+) (\w+)$", "\n".join(self.lines), re.MULTILINE)
        return Program(self.inputs, self.buffers, self.constants, tuple(self.calls), self.returns, frozenset(pairs))

    # what is defined outside the function ---------------------------------------------------------------------

    def _definition(self, node: ast.Assign) -> None:
        """A kernel of the program's own: which arguments it writes follows from their types or names."""
        (target,), call = node.targets, node.value
        assert isinstance(call, ast.Call)
        maker = ast.unparse(call.func)
        if not isinstance(target, ast.Name):
            return
        if maker.startswith("async_compile.cpp_pybinding"):
            types, text = ast.literal_eval(call.args[0]), ast.literal_eval(call.args[1])
            written = tuple("*" in kind and not kind.startswith("const") for kind in types)
            kernel = Kernel(target.id, self.names[target.id], repr((types, text)))
        elif maker.startswith("async_compile.triton"):
            text = ast.literal_eval(call.args[1])
            names = re.search(r"def \w+\(([^)]*)\)", text)
            arguments = [] if names is None else [a.split(":")[0].strip() for a in names[1].split(",")]
            written = tuple(a.startswith(("out_ptr", "in_out_ptr")) for a in arguments)
            if any(a.startswith("in_out_ptr") for a in arguments) and "mutated_arg_names" in text:
                written = tuple(w or a in _mutated(text) for w, a in zip(written, arguments, strict=True))
            kernel = Kernel(target.id, self.names[target.id].run, text)
        else:
            return
        self.kernels[target.id] = (kernel, written)

    # statements -----------------------------------------------------------------------------------------------

    def _statements(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._note_handles(statement)
            self._statement(statement)

    def _note_handles(self, statement: ast.stmt) -> None:
        """Labels that comments before a statement give the kernel that it calls."""
        at = statement.lineno - 2
        self.handles = []
        while at >= 0 and (line := self.lines[at].strip()).startswith("#"):
            if found := _HANDLE.match(line):
                self.handles.append(found[1])
            at -= 1

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.With(body=body):  # which device is the current one
                self._statements(body)
            case ast.Delete() | ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.Return(value=ast.Tuple(elts=elements)):
                self.returns = tuple(self._argument(e, statement) for e in elements)
            case ast.Assign(targets=[target], value=ast.Name(id="args")):
                targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                self.inputs = tuple(t.id for t in targets if isinstance(t, ast.Name))
                self.seen.update((n, Seen(n)) for n in self.inputs)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._assign(name, value, statement)
            case ast.Expr(value=ast.Call() as call):
                self._call(call, statement)
            case _:
                raise self._unknown(statement)

    def _assign(self, name: str, value: ast.expr, statement: ast.stmt) -> None:
        match value:
            case ast.Name() | ast.Call(func=ast.Name(id="reinterpret_tensor")):
                found = self._argument(value, statement)
                if not isinstance(found, Seen):
                    raise self._unknown(statement)
                self.seen[name] = found
            case ast.Call(func=ast.Name(id=maker)) if _NEW.match(maker):
                self.buffers[name] = self._buffer(value, maker, statement)
                self.seen[name] = Seen(name)
            case ast.Call(func=ast.Name(id=maker)) if maker.startswith("get_raw_stream"):
                (self.streams[name],) = self._numbers(ast.Tuple(value.args, ast.Load()), statement)
            case ast.Call(func=ast.Name(id="copy_misaligned"), args=[ast.Name(id=given), *_]) if given == name:
                pass  # what comes from an arena is aligned
            case ast.Subscript(value=ast.Name(id=whole), slice=ast.Constant(value=int(index))):
                maker_call = next((c for c in reversed(self.calls) if whole == c.result or whole in c.picks), None)
                if maker_call is None:
                    raise self._unknown(statement)
                maker_call.picks[name] = (*maker_call.picks.get(whole, ()), index)
                self.seen[name] = Seen(name)
            case ast.Call():
                self._call(value, statement, result=name)
                self.seen[name] = Seen(name)
            case _:
                raise self._unknown(statement)

    def _buffer(self, call: ast.expr, maker: str, statement: ast.stmt) -> Buffer:
        assert isinstance(call, ast.Call)
        keywords = {k.arg: k.value for k in call.keywords}
        arguments = list(call.args)
        device = {"empty_strided_cpu": "cpu", "empty_strided_cuda": "cuda"}.get(maker)
        if device is None:
            device = str(self._plain(keywords["device"], statement)) if "device" in keywords else "cpu"
        kind = keywords["dtype"] if "dtype" in keywords else arguments[2]
        dtype = self._plain(kind, statement)
        return Buffer(self._numbers(arguments[0], statement), self._numbers(arguments[1], statement), dtype, device)

    # calls ----------------------------------------------------------------------------------------------------

    def _call(self, call: ast.Call, statement: ast.stmt, result: str | None = None) -> None:
        name = ast.unparse(call.func)
        if name in _CHECKS:
            self._check(call, name, statement)
            return
        keywords = [(k.arg, self._argument(k.value, statement)) for k in call.keywords if k.arg and k.arg != "stream"]
        arguments = [self._argument(a, statement) for a in call.args]
        own = self.kernels.get(name.removesuffix(".run"))
        if own is not None:
            kernel, written = own
            writes = [n for a, w in zip(arguments, written, strict=False) if w for n in _names((a,))]
            keywords += [("stream", self._stream(k.value, statement)) for k in call.keywords if k.arg == "stream"]
        else:
            kernel = Kernel(name.removeprefix("extern_kernels."), self._callable(call.func, statement), name)
            writes = [n for key, a in keywords if key == "out" for n in _names((a,))]
            if not writes and result is None:  # an operator that overwrites its first argument
                writes = list(_names(tuple(arguments[:1])))
        traces = tuple(dict.fromkeys(t for h in self.handles for t in self.traces.get(h, ())))
        self._may_write(writes, statement)
        self.calls.append(
            KernelCall(kernel, tuple(arguments), tuple(keywords), tuple(dict.fromkeys(writes)), result, traces=traces)
        )

    def _stream(self, node: ast.expr, statement: ast.stmt) -> Argument:
        if not isinstance(node, ast.Name) or node.id not in self.streams:
            raise self._unknown(statement)
        return Plain(CurrentStream(self.streams[node.id]))

    def _may_write(self, writes: list[str], statement: ast.stmt) -> None:
        for name in writes:
            if name in self.inputs or name in self.constants:
                raise UnsupportedOperator(
                    f"a kernel of Inductor's writes into an argument of its graph ({self._line(statement)}), and "
                    f"could not be recomputed with the same result: {_REMEDY}"
                )

    def _check(self, call: ast.Call, name: str, statement: ast.stmt) -> None:
        """What a program checks of a library's results says how they lie in memory."""
        if name != "assert_size_stride" or not isinstance(call.args[0], ast.Name):
            return
        checked = call.args[0].id
        for made in reversed(self.calls):
            if checked == made.result or checked in made.picks:
                made.layouts[checked] = (
                    self._numbers(call.args[1], statement),
                    self._numbers(call.args[2], statement),
                )
                return

    def _callable(self, function: ast.expr, statement: ast.stmt) -> Any:
        """What a dotted name stands for in the program's module."""
        parts = ast.unparse(function).split(".")
        if not all(part.isidentifier() for part in parts) or parts[0] not in self.names:
            raise self._unknown(statement)
        found = self.names[parts[0]]
        for part in parts[1:]:
            found = getattr(found, part, None)
        if not callable(found):
            raise self._unknown(statement)
        if parts == ["extern_kernels", "convolution"]:
            return torch.ops.aten.convolution.default
        return found

    # arguments ------------------------------------------------------------------------------------------------

    def _argument(self, node: ast.expr, statement: ast.stmt) -> Argument:
        match node:
            case ast.Name(id=name) if name in self.seen:
                return self.seen[name]
            case ast.Name(id=name) if isinstance(self.names.get(name), torch.Tensor):
                self.constants[name] = self.names[name]
                return Seen(name)
            case ast.Call(func=ast.Name(id="reinterpret_tensor"), args=[base, size, stride, offset]):
                found = self._argument(base, statement)
                if not isinstance(found, Seen):
                    raise self._unknown(statement)
                (start,) = self._numbers(ast.Tuple([offset], ast.Load()), statement)
                window = Window(self._numbers(size, statement), self._numbers(stride, statement), start)
                return Seen(found.name, window.behind(found.window))
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                items = tuple(self._argument(e, statement) for e in elements)
                if all(isinstance(i, Plain) for i in items):
                    return Plain([i.value for i in items if isinstance(i, Plain)])
                return Several(items)
        return Plain(self._plain(node, statement))

    def _plain(self, node: ast.expr, statement: ast.stmt) -> Any:
        """A constant: what Python can read as one, a dtype or the like of torch's, a device, infinity."""
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError):
            pass
        match node:
            case ast.Name(id="inf" | "nan" as name):
                return float(name)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
                return float("-inf")
            case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]):
                return float(text)
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                found = getattr(torch, name, None)
                if isinstance(found, torch.dtype | torch.layout | torch.memory_format):
                    return found
            case ast.Call(func=ast.Name(id="device") | ast.Attribute(value=ast.Name(id="torch"), attr="device")):
                parts = [ast.literal_eval(a) for a in (*node.args, *(k.value for k in node.keywords))]
                return torch.device(*parts)
            case ast.Name(id=name) if _SYMBOLIC.match(name):
                raise self._symbolic(statement)
        if any(isinstance(n, ast.Name) and _SYMBOLIC.match(n.id) for n in ast.walk(node)):
            raise self._symbolic(statement)
        raise self._unknown(statement)

    def _numbers(self, node: ast.expr, statement: ast.stmt) -> tuple[int, ...]:
        found = self._plain(node, statement)
        if not isinstance(found, tuple | list) or not all(type(n) is int for n in found):
            raise self._unknown(statement)
        return tuple(found)

    def _line(self, statement: ast.stmt) -> str:
        return self.lines[statement.lineno - 1].strip()[:200]

    def _symbolic(self, statement: ast.stmt) -> UnsupportedOperator:
        return UnsupportedOperator(
            f"Inductor compiled for sizes that vary ({self._line(statement)}), and its kernels are planned for fixed "
            "sizes: pass dynamic=False, which compiles each shape by itself."
        )

    def _unknown(self, statement: ast.stmt) -> UnsupportedOperator:
        return UnsupportedOperator(
            f"a statement of Inductor's program is not understood ({self._line(statement)}): {_REMEDY}"
        )


def _mutated(text: str) -> frozenset[str]:
    found = re.search(r"'mutated_arg_names': (\[[^\]]*\])", text)
    return frozenset(ast.literal_eval(found[1]) if found else ())


def is_operator(kernel: Kernel) -> bool:
    """Whether a kernel is an operator of torch's, which graphs call by its name."""
    return isinstance(kernel.call, Overload)
