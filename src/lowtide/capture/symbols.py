"""Symbolic sizes made concrete: one integer per symbol, read off the actual arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from lowtide.errors import UnsupportedOperator
from lowtide.ir.geometry import Geometry

ShapeKey = tuple[int | float | bool, ...]


class Symbols:
    """Values of the symbols of one joint graph for one set of arguments.

    Arguments:
        primals: the forward's placeholders.
        arguments: what the forward was called with (tensors and numbers), in the same order; None to use the
            hints that the trace was made with.
    """

    def __init__(self, primals: Sequence[fx.Node], arguments: Sequence[Any] | None) -> None:
        self._value: dict[Any, int] = {}
        self._cache: dict[Any, int | float | bool] = {}
        self._hints = arguments is None
        for node, actual in zip(primals, arguments or [], strict=False):
            traced = node.meta.get("val")
            if isinstance(traced, torch.SymInt):
                self._learn(traced, int(actual))
            elif isinstance(traced, torch.Tensor) and isinstance(actual, torch.Tensor):
                for symbolic, size in zip(traced.shape, actual.shape, strict=True):
                    self._learn(symbolic, size)

    def _learn(self, symbolic: Any, value: int) -> None:
        if isinstance(symbolic, torch.SymInt) and symbolic.node.expr.is_symbol:
            self._value[symbolic.node.expr] = value

    def number(self, value: Any) -> int | float | bool:
        """The concrete number behind a possibly symbolic one.

        Raises:
            UnsupportedOperator: if it depends on data (an unbacked symbol), which no plan can know.
        """
        if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return value  # type: ignore[no-any-return]
        if self._hints:
            hint = value.node.hint
            if hint is None:
                raise UnsupportedOperator(
                    f"the size {value} depends on data; lowtide needs sizes known before the step"
                )
            return hint  # type: ignore[no-any-return]
        expression = value.node.expr
        if expression not in self._cache:
            concrete = expression.subs(self._value)
            if not getattr(concrete, "is_number", True):
                raise UnsupportedOperator(
                    f"the size {expression} depends on data; lowtide needs every size known before the step. "
                    "Move the operator that makes it out of the model, or mark it with torch._dynamo.disable"
                )
            kind = bool if isinstance(value, torch.SymBool) else float if isinstance(value, torch.SymFloat) else int
            self._cache[expression] = kind(concrete)
        return self._cache[expression]

    def geometry(self, value: torch.Tensor) -> Geometry:
        """A traced tensor's geometry with concrete numbers."""
        return Geometry(
            dtype=str(value.dtype).removeprefix("torch."),
            shape=tuple(int(self.number(n)) for n in value.shape),
            stride=tuple(int(self.number(n)) for n in value.stride()),
            offset=int(self.number(value.storage_offset())),
            device=value.device.type,
        )


def shape_key(positions: Sequence[int], arguments: Sequence[Any]) -> ShapeKey:
    """What distinguishes calls of one graph: its symbolic arguments. 0.1 us each."""
    return tuple(arguments[i] for i in positions)


def describe_shapes(
    primals: Sequence[fx.Node], names: Mapping[int, str], symbols: Symbols
) -> tuple[tuple[str, str], ...]:
    """Name and shape of every tensor the caller gives, for people and for comparing plans with programs."""
    rows = []
    for index, node in enumerate(primals):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            geometry = symbols.geometry(value)
            rows.append((names.get(index, node.name), f"{geometry.dtype}{list(geometry.shape)}"))
    return tuple(rows)
