"""An operator call as data: what is called, on which views of which values, with which constants.

A call is complete: the profiler runs it on fresh tensors and the code generator prints it, both
without the program it came from. The exception is `Held`, an argument that has no text form (the
body of a higher-order operator, say): it stays with the capture, and a graph that has one cannot
be executed from a file, though it can be planned from one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from lowtide.ir.geometry import Geometry


class Ref(msgspec.Struct, frozen=True, tag="ref"):
    """The tensor of the recipe's `reads[index]`; inside a `View`, `index` is 0 and means its base."""

    index: int


class Const(msgspec.Struct, frozen=True, tag="const"):
    """A constant that JSON lacks, by kind and text: `Const("dtype", "float32")`, `Const("float", "-inf")`."""

    kind: Literal["dtype", "device", "layout", "memory_format", "float", "complex"]
    text: str


class Held(msgspec.Struct, frozen=True, tag="held"):
    """An argument that only the capture holds, by its index there."""

    index: int


class Items(msgspec.Struct, frozen=True, tag="items"):
    """A list argument."""

    items: tuple[Arg, ...]


Arg = None | bool | int | float | str | Ref | Const | Held | Items
NamedArg = tuple[str, Arg]


class View(msgspec.Struct, frozen=True):
    """One geometric step: `op(*args, **kwargs)` with `Ref(0)` for the base, then `[pick]` where it returns several."""

    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[NamedArg, ...] = ()
    pick: int | None = None


class Read(msgspec.Struct, frozen=True):
    """One tensor that a recipe reads: a value, seen through views that move no byte.

    Arguments:
        value: id of the value.
        views: steps from the value's own tensor to the one that is passed; empty for the tensor itself.
        geometry: of what is passed.
    """

    value: int
    views: tuple[View, ...] = ()
    geometry: Geometry | None = None
