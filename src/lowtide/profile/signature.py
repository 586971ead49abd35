"""What decides an operator's cost: its name, its arguments, and the geometry of the tensors it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from lowtide.device.calls import apply_view
from lowtide.ir.call import Arg, Const, Held, Items, NamedArg, View
from lowtide.ir.geometry import Geometry
from lowtide.ops.updates import LIVE

# They copy what they do not replace together with the storage it lies in, however little of it they are shown.
_COPIES_STORAGE = tuple(f"aten.{kind}." for kind in ("copy", "slice_scatter", "select_scatter", "diagonal_scatter"))


def copies_storage(op: str) -> bool:
    """Whether an operator's memory depends on the storage behind what it is passed."""
    return op.startswith(_COPIES_STORAGE)


def counting(kwargs: tuple[NamedArg, ...]) -> tuple[NamedArg, ...]:
    """The keyword arguments that decide what a call costs: all but the one that says on whose behalf it runs."""
    return tuple(k for k in kwargs if k[0] != LIVE)


class Signature(msgspec.Struct, frozen=True):
    """An operator call with its tensors replaced by their geometry. Values, aliasing and process do not matter.

    Arguments:
        op, args, kwargs: as in a recipe.
        reads: what `Ref(i)` is passed, seen through its views.
        storages_B: per read, the bytes of the storage behind it, where the operator copies all of that; else empty.
    """

    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[NamedArg, ...]
    reads: tuple[Geometry, ...]
    storages_B: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """A text that is equal exactly when the signatures are."""
        parts = (self.op, self.args, self.kwargs, self.reads)
        return msgspec.json.encode((*parts, self.storages_B) if self.storages_B else parts).decode()

    @property
    def device(self) -> str:
        """Where it runs: the device of the first tensor that is not on the CPU."""
        named = [c.text for c in constants(self.args, self.kwargs) if c.kind == "device"]
        devices = [*(g.device for g in self.reads), *(text.split(":")[0] for text in named)]
        return next((d for d in devices if d != "cpu"), "cpu")

    @property
    def portable(self) -> bool:
        """Whether another process can understand it: nothing in it is held by the capture alone."""
        return not any(isinstance(arg, Held) for arg in leaves(self.args, self.kwargs))


def leaves(args: Sequence[Arg], kwargs: Sequence[NamedArg] = ()) -> list[Arg]:
    """All arguments, those inside lists included."""
    found: list[Arg] = []
    pending = [*args, *(arg for _, arg in kwargs)]
    while pending:
        arg = pending.pop(0)
        if isinstance(arg, Items):
            pending = [*arg.items, *pending]
        else:
            found.append(arg)
    return found


def constants(args: Sequence[Arg], kwargs: Sequence[NamedArg]) -> list[Const]:
    """The `Const`s among all arguments."""
    return [arg for arg in leaves(args, kwargs) if isinstance(arg, Const)]


def geometry_of(tensor: torch.Tensor, device: str | None = None) -> Geometry:
    """A tensor's geometry in its storage.

    Arguments:
        tensor: strided.
        device: to write instead of the tensor's own, for tensors that only stand for others.
    """
    return Geometry(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        offset=int(tensor.storage_offset()),
        device=device or tensor.device.type,
    )


def viewed(base: Geometry, views: Sequence[View], held: Sequence[Any] = ()) -> Geometry:
    """What view steps make of a geometry, without memory.

    Raises:
        UnsupportedOperator: for a step that the installed torch does not know.
        RuntimeError: torch's own, if a step does not exist for the base's strides.
    """
    if not views:
        return base
    tensor: Any = as_strided(torch.empty(0, dtype=getattr(torch, base.dtype), device="meta"), base)
    for view in views:
        tensor = apply_view(view, tensor, held)
    return geometry_of(tensor, base.device)


def as_strided(storage: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    """A window on a one-dimensional tensor; on the meta device the tensor may be shorter than the window needs."""
    if storage.device.type == "meta":
        needed = 1 + geometry.offset + sum((n - 1) * s for n, s in zip(geometry.shape, geometry.stride, strict=True))
        storage = storage.new_empty(max(needed, 0))
    return storage.as_strided(geometry.shape, geometry.stride, geometry.offset)
