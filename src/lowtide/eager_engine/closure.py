"""How to run an operator again: the overload, its arguments with geometry in the place of tensors, the numbers drawn.

A closure holds no tensor: a view of a storage is its size, strides and offset, so views take part without being values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from lowtide.eager_engine.operators import ORDINARY, Operator, tensors_in
from lowtide.eager_engine.randomness import Draw
from lowtide.eager_engine.setting import Setting

_NO_BYTES = -1


class Seen(msgspec.Struct, frozen=True):
    """One tensor argument: which input's storage, and how it looks at it.

    Arguments:
        input: index among the inputs of the call; -1: a storage of no bytes.
        conjugated, negated: it is read so, while the bytes are not.
    """

    input: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    conjugated: bool = False
    negated: bool = False

    def tensor(self, storage: torch.UntypedStorage) -> Tensor:
        """The same look at a storage."""
        made = torch.empty(0, dtype=self.dtype, device="cpu").set_(storage, self.offset, self.size, self.stride)
        if self.conjugated:
            torch._C._set_conj(made, True)
        if self.negated:
            torch._C._set_neg(made, True)
        return made


class Several(msgspec.Struct, frozen=True):
    """A list among the arguments."""

    items: tuple[Any, ...]


class Closure(msgspec.Struct, frozen=True):
    """See the module.

    Arguments:
        func: the overload.
        args, kwargs: its arguments; `Seen` and `Several` stand for tensors and lists.
        draw: where the generator stood from which it draws; None if it draws nothing.
        setting: how torch stood.
        outputs: the call's: a position among the tensors that it returns, or -1 - i for what it writes over input i.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    draw: Draw | None
    setting: Setting
    outputs: tuple[int, ...]

    def arguments(self, storages: Sequence[torch.UntypedStorage]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments over storages of its inputs, in their order."""
        return (
            tuple(_filled(item, storages) for item in self.args),
            {name: _filled(item, storages) for name, item in self.kwargs.items()},
        )

    def made(self, results: Any, storages: Sequence[torch.UntypedStorage]) -> list[torch.UntypedStorage]:
        """The storages of the call's outputs, from what the overload returned and what it was given."""
        tensors = list(tensors_in((results,)))
        return [tensors[i].untyped_storage() if i >= 0 else storages[-1 - i] for i in self.outputs]


class Form(msgspec.Struct, frozen=True):
    """The arguments of a closure, before it is known what comes of them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def form_of(
    operator: Operator,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: dict[int, int],
    *,
    spared: bool,
) -> Form | None:
    """The arguments of an operator as a closure keeps them; None where one has no form that can be kept.

    Arguments:
        inputs: address of a storage -> index among the inputs.
        spared: arguments that are written behind the schema's back are left out of a rerun.
    """
    spare: set[int] = set()
    if spared and operator.hidden is not None:
        names = [argument.name for argument in func._schema.arguments]  # type: ignore[attr-defined]
        spare = {names.index(name) for name in operator.hidden.spare}
        kwargs = {name: None if name in operator.hidden.spare else item for name, item in kwargs.items()}
    try:
        kept = tuple(None if i in spare else _kept(item, inputs) for i, item in enumerate(args))
        return Form(kept, {name: _kept(item, inputs) for name, item in kwargs.items()})
    except _Unkept:
        return None


class _Unkept(Exception):
    """An argument that means something else in a rerun."""


def _kept(item: Any, inputs: dict[int, int]) -> Any:
    if isinstance(item, Tensor):
        storage = item.untyped_storage()
        index = inputs[storage._cdata] if storage.nbytes() else _NO_BYTES
        look = item.size(), item.stride(), int(item.storage_offset())
        return Seen(index, item.dtype, *look, conjugated=item.is_conj(), negated=item.is_neg())
    if isinstance(item, list | tuple):
        return Several(tuple(_kept(part, inputs) for part in item))
    if isinstance(item, (*ORDINARY, torch.Generator)):
        return item
    raise _Unkept


def _filled(item: Any, storages: Sequence[torch.UntypedStorage]) -> Any:
    if isinstance(item, Seen):
        if item.input == _NO_BYTES:
            return torch.empty_strided(item.size, item.stride, dtype=item.dtype, device="cpu")
        return item.tensor(storages[item.input])
    if isinstance(item, Several):
        return [_filled(part, storages) for part in item.items]
    return item


@contextlib.contextmanager
def as_first_run(closure: Closure) -> Iterator[None]:
    """Inside, an operator runs as it did: below autograd, autocast and every mode, with the numbers that it drew."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        stack.enter_context(torch._C._ExcludeDispatchKeyGuard(keys))
        stack.enter_context(closure.setting.again())
        if closure.draw is not None:
            stack.enter_context(closure.draw.again())
        yield
