"""Calls of kernels that a compiler generated, as pure functions that make their own results.

A compiler's program allocates buffers and calls kernels that write into them. Here such a call, together with the
allocation of what it writes, is one function from tensors to new tensors: it can run as often as wanted, anywhere. The
function's source is written from numbers alone; kernels, dtypes and constants are objects in its globals.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.ir.compiled_names import compiled_name, may_overwrite, plain_name, said_of

_WORD = re.compile(r"[^A-Za-z0-9_]")
_LONGEST, _SHORT = 80, 48  # letters of a kernel's name, and of what values of its are called after


@dataclass(frozen=True)
class Window:
    """How a tensor is seen in its storage: elements, and the offset relative to that of what is seen through it."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def behind(self, outer: Window | None) -> Window:
        """This window on what is itself seen through another one."""
        return self if outer is None else Window(self.size, self.stride, self.offset + outer.offset)


@dataclass(frozen=True)
class Buffer:
    """What a kernel writes into: a new tensor.

    Arguments:
        filled_from: which tensor has its first content, where kernels write a part of it only; None where they write
            all of it.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    filled_from: int | None = None

    @property
    def extent_B(self) -> int:
        """Bytes of its storage."""
        if 0 in self.size:
            return 0
        return (1 + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))) * self.dtype.itemsize


@dataclass(frozen=True)
class Given:
    """A tensor that the function is given, seen through a window."""

    index: int
    window: Window | None = None


@dataclass(frozen=True)
class Made:
    """A buffer of the function's own, seen through a window."""

    index: int
    window: Window | None = None


@dataclass(frozen=True)
class Constant:
    """A number, a dtype, a list of such: anything that is no tensor."""

    value: Any


@dataclass(frozen=True)
class CurrentStream:
    """The stream on which a GPU's kernels run when the function is called."""

    device: int


@dataclass(frozen=True)
class Listed:
    """A list argument with tensors in it."""

    items: tuple[Operand, ...]


Operand = Given | Made | Constant | CurrentStream | Listed


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel of a compiler's.

    Arguments:
        name: for people.
        call: what to call.
        text: what it is, so that equal texts are equal kernels: its source, or the name of a library's function.
    """

    name: str
    call: Callable[..., Any]
    text: str


@dataclass(frozen=True, eq=False)
class Launch:
    """One call of a kernel."""

    kernel: Kernel
    operands: tuple[Operand, ...]
    keywords: tuple[tuple[str, Operand], ...] = ()


class CompiledKernel:
    """A function from tensors to new tensors, with the name by which graphs know it.

    Arguments:
        launches: kernels that run, in order.
        buffers: what they write into, which is returned: the tensor itself where it is one, else a tuple. Without
            buffers the result of the only launch is returned.
        given: how many tensors it takes.
        over: pairs of a tensor that is given and a buffer that may be written over it.
    """

    def __init__(
        self,
        launches: tuple[Launch, ...],
        buffers: tuple[Buffer, ...],
        given: int,
        over: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.launches, self.buffers, self.given = launches, buffers, given
        self.name = _word(launches[-1].kernel.name)
        self.op = compiled_name(self.name, _digest(launches, buffers), over)
        # What `torch.fx` writes in a graph's code.
        self.__name__ = self.__qualname__ = _WORD.sub("_", said_of(self.op))[:_SHORT].strip("_")
        self.__module__ = __name__
        self.run = _function(launches, buffers, given, over={})

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Runs it."""
        return self.run(*tensors)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledKernel:
        return self

    def __reduce__(self) -> str:
        raise TypeError("a kernel lives in the process that compiled it: compile the model again")


_KNOWN: dict[str, CompiledKernel] = {}


def known_kernel(kernel: CompiledKernel) -> CompiledKernel:
    """Makes a kernel known by its name; returns the one that is known by it, which does the same."""
    return _KNOWN.setdefault(kernel.op, kernel)


def compiled_kernel(op: str) -> CompiledKernel | None:
    """The kernel of a name; None where nothing of this process has compiled it."""
    return _KNOWN.get(op)


def kernel_of(target: object) -> CompiledKernel | None:
    """The kernel that a node of a graph calls; None for everything else."""
    return target if isinstance(target, CompiledKernel) else None


def compiled_op(op: str) -> Callable[..., Any] | None:
    """What runs an operator of a name that `lowtide.ir.compiled_names` makes; None where it is not known here."""
    plain, over = plain_name(op)
    kernel = _KNOWN.get(plain)
    if kernel is None or over is None:
        return None if kernel is None else kernel.run
    given, buffer = over
    if over not in may_overwrite(plain) or given >= kernel.given or buffer >= len(kernel.buffers):
        return None
    return _function(kernel.launches, kernel.buffers, kernel.given, over={buffer: given})


def _function(
    launches: tuple[Launch, ...], buffers: tuple[Buffer, ...], given: int, over: dict[int, int]
) -> Callable[..., Any]:
    """Compiles the function.

    Arguments:
        over: buffers that lie over tensors that are given, with the number of each.
    """
    scope: dict[str, Any] = {"_window": torch._C._dynamo.guards._reinterpret_tensor}  # type: ignore[attr-defined]
    lines = [f"def run({', '.join(f'a{i}' for i in range(given))}):"]
    for index, buffer in enumerate(buffers):
        extent = f"({_numbers(buffer.size)}), ({_numbers(buffer.stride)})"
        if index in over:
            lines.append(f"    b{index} = _window(a{over[index]}, {extent}, 0)")
        else:
            scope[f"_new{index}"] = _allocator(buffer)
            lines.append(f"    b{index} = _new{index}({extent}{_tail(scope, index, buffer)})")
        if buffer.filled_from is not None and over.get(index) != buffer.filled_from:
            lines.append(f"    b{index}.copy_(a{buffer.filled_from})")
    for index, launch in enumerate(launches):
        scope[f"k{index}"] = launch.kernel.call
        arguments = [_expression(operand, scope) for operand in launch.operands]
        arguments += [f"{_keyword(name)}={_expression(operand, scope)}" for name, operand in launch.keywords]
        lines.append(f"    {'' if buffers else 'return '}k{index}({', '.join(arguments)})")
    if buffers:
        lines.append(f"    return {', '.join(f'b{i}' for i in range(len(buffers)))}")
    exec(compile("\n".join((*lines, "")), "<lowtide compiled kernel>", "exec"), scope)
    run: Callable[..., Any] = scope["run"]
    return run


def _allocator(buffer: Buffer) -> Callable[..., Any]:
    """What makes a buffer: torch's short way to an uninitialised tensor, where there is one for the device."""
    guards: Any = torch._C._dynamo.guards
    short: dict[str, Callable[..., Any]] = {"cpu": guards._empty_strided_cpu, "cuda": guards._empty_strided_cuda}
    return short.get(buffer.device.partition(":")[0], torch.empty_strided)


def _tail(scope: dict[str, Any], index: int, buffer: Buffer) -> str:
    scope[f"_dtype{index}"] = buffer.dtype
    if buffer.device.partition(":")[0] in ("cpu", "cuda"):
        return f", _dtype{index}"
    scope[f"_device{index}"] = buffer.device
    return f", dtype=_dtype{index}, device=_device{index}"


def _expression(operand: Operand, scope: dict[str, Any]) -> str:
    match operand:
        case Given(index=index, window=window):
            return _seen(f"a{index:d}", window)
        case Made(index=index, window=window):
            return _seen(f"b{index:d}", window)
        case Listed(items=items):
            return "[" + ", ".join(_expression(item, scope) for item in items) + "]"
        case CurrentStream(device=device):
            scope["_stream"] = torch._C._cuda_getCurrentRawStream
            return f"_stream({int(device):d})"
        case Constant(value=value):
            if value is None or type(value) in (bool, int):
                return repr(value)
            name = f"c{len(scope)}"
            scope[name] = value
            return name


def _seen(name: str, window: Window | None) -> str:
    if window is None:
        return name
    return f"_window({name}, ({_numbers(window.size)}), ({_numbers(window.stride)}), {int(window.offset):d})"


def _numbers(numbers: tuple[int, ...]) -> str:
    return "".join(f"{int(n):d}, " for n in numbers).rstrip()


def _keyword(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{name!r} is no name of an argument")
    return name


def _word(text: str) -> str:
    """A kernel's name as a graph has it: without the number that tells it from others of its program."""
    return _WORD.sub("_", re.sub(r"_\d+$", "", text)).strip("_")[:_LONGEST] or "kernel"


def _digest(launches: tuple[Launch, ...], buffers: tuple[Buffer, ...]) -> str:
    found = hashlib.sha256()
    for launch in launches:
        found.update(repr((launch.kernel.text, launch.operands, launch.keywords)).encode())
    found.update(repr(buffers).encode())
    return found.hexdigest()[:16]
