"""Torch's side of the interception: a dispatch mode, which sees every operator of its thread below autograd.

Operators that look and read nothing go straight through. Tensors of other kinds unfold first: what they are made of
comes back here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.eager_engine.interception import is_plain
from lowtide.eager_engine.operators import Operator, operator

_OWN = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})
Perform = Callable[[Operator, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class EagerMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """See the module.

    Arguments:
        perform: runs an operator that reads or writes bytes.
        look: is told of parameters that an operator looks at.
    """

    supports_higher_order_operators = True

    def __init__(self, perform: Perform, look: Callable[[Tensor], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._perform: Perform | None = perform
        self._look = look

    def stop(self) -> None:
        """From now on every operator goes straight through: a child process does not train its parent's model."""
        self._perform = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._perform is None:
            return func(*args, **(kwargs or {}))
        if types and not _OWN.issuperset(types):
            return NotImplemented
        op = operator(func)
        if op.is_composite:  # in inference mode; elsewhere autograd has taken it to pieces
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if not op.is_view:
            return self._perform(op, func, args, kwargs or {})
        first = args[0] if args else None
        if isinstance(first, Tensor) and first.requires_grad and first.is_leaf and is_plain(first):
            self._look(first)
        return func(*args, **(kwargs or {}))
