"""What torch knows of an operator: of which kind it is, its arguments and results by schema, and whether it writes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Overload = torch._ops.OpOverload
"""An operator as it is dispatched, `aten.add.Tensor`."""
CONVERT: Overload = torch.ops.aten._to_copy.default
"""Copies a tensor, to another dtype, device or layout."""
READ_ONE: Overload = torch.ops.aten._local_scalar_dense.default
"""Reads the value of a tensor of one element."""


def overload_of(target: object) -> Overload | None:
    """What a node of a graph calls, if that is an operator; None for higher-order operators and Python functions."""
    return target if isinstance(target, torch._ops.OpOverload) else None


def higher_order_name(target: object) -> str | None:
    """The name of an operator that calls other graphs; None for all others."""
    return str(target.name()) if isinstance(target, torch._ops.HigherOrderOperator) else None  # type: ignore[no-untyped-call]


def arguments_of(op: Overload) -> Sequence[torch.Argument]:
    """The arguments of an operator's schema: names, types, defaults, and what is overwritten or shared."""
    return op._schema.arguments


def results_of(op: Overload) -> Sequence[torch.Argument]:
    """The results of an operator's schema: names, types, and which of them are views of arguments."""
    return op._schema.returns


def overwrites(op: Overload) -> bool:
    """Whether an operator's schema says that it writes into an argument."""
    return bool(op._schema.is_mutable)


def plain_name(op: Overload) -> str:
    """An operator's name without namespace and overload: `add` of `aten.add.Tensor`."""
    return op._schema.name.split("::")[-1]
