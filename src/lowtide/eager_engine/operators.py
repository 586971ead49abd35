"""What an operator does to storages: what it writes, whether it reads any bytes, whether it draws random numbers.

Read off its schema, and corrected where the schema is silent (`liars.py`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from torch import Tensor

from lowtide.eager_engine.liars import COMMUNICATING, LIARS, TRUSTED, UNDECLARED_VIEWS, Hidden

ORDINARY = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Arguments that mean the same in a rerun."""


class Operator(msgspec.Struct, frozen=True):
    """What one overload does.

    Arguments:
        name: with its overload, `"aten.relu_.default"`.
        writes: names and positions of the arguments whose bytes it writes.
        is_view: it reads and writes no bytes: its results look at an argument's, or are no tensors.
        is_random: it draws from a generator, its own argument's or the default one.
        is_out: it may give what it writes other bytes, of another size.
        is_composite: it is made of others, and does nothing itself.
        is_known: it can be run again from its arguments; else its results are kept.
        makes: it has results that are none of its arguments.
        communicates: it may write any argument, and read and write after it has returned.
        is_foreign: it is another library's, whose schema is checked each time.
        hidden: what its schema does not say; None: nothing.
    """

    name: str
    writes: tuple[tuple[str, int], ...] = ()
    is_view: bool = False
    is_random: bool = False
    is_out: bool = False
    is_composite: bool = False
    is_known: bool = True
    makes: bool = True
    communicates: bool = False
    is_foreign: bool = False
    hidden: Hidden | None = None

    def written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
        """The tensors among the arguments whose bytes it writes, or may write."""
        if self.communicates:
            yield from tensors_of(args, kwargs)
            return
        for name, position in self.writes:
            yield from tensors_in((args[position] if position < len(args) else kwargs.get(name),))


def tensors_in(items: Any) -> Iterator[Tensor]:
    """The tensors in a sequence, and in the lists in it."""
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from tensors_in(item)
        elif isinstance(item, dict):
            yield from tensors_in(item.values())


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Every tensor among the arguments of a call, in order."""
    return tensors_in(itertools.chain(args, kwargs.values())) if kwargs else tensors_in(args)


@functools.cache
def operator(func: Callable[..., Any]) -> Operator:
    """What this overload does."""
    schema = getattr(func, "_schema", None)
    if schema is None or not isinstance(func, torch._ops.OpOverload):
        return Operator(str(func), is_known=False)
    name = str(func)
    hidden = LIARS.get(name)
    writes = [
        (argument.name, position)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if hidden is not None:
        writes += [(a.name, i) for i, a in enumerate(schema.arguments) if a.name in hidden.writes]
    tags = func.tags
    space = func.namespace
    communicates = space in COMMUNICATING
    is_foreign = not communicates and space not in TRUSTED
    moves_only = torch.Tag.inplace_view in tags and not name.startswith("aten.resize")
    return Operator(
        name,
        writes=() if moves_only else tuple(writes),
        is_view=not communicates and (moves_only or name in UNDECLARED_VIEWS or (not writes and _views_only(schema))),
        is_random=is_foreign or torch.Tag.nondeterministic_seeded in tags or (hidden is not None and hidden.draws),
        is_out=any(a.kwarg_only and a.alias_info is not None and a.alias_info.is_write for a in schema.arguments),
        is_composite=_has_kernel(func, "CompositeImplicitAutograd") and not _has_kernel(func, "CPU"),
        is_known=not name.startswith("aten.resize") and not communicates,
        makes=any(result.alias_info is None for result in schema.returns),
        communicates=communicates,
        is_foreign=is_foreign,
        hidden=hidden,
    )


def _has_kernel(func: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))


def _views_only(schema: Any) -> bool:
    return bool(schema.returns) and all(result.alias_info is not None for result in schema.returns)
