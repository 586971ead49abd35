"""The operators that a piece of plain PyTorch runs, one after another, with what each made and overwrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lowtide.device.dispatch_modes import OperatorMode
from lowtide.device.trees import tensors_in

Seen = Callable[[str, list[torch.Tensor], list[torch.Tensor]], None]
_SAME_BYTES = ("aten.alias.default", "aten.detach.default")
_UNDECLARED = ("batch_norm",)  # operators that overwrite inputs of which their schema does not say so


class OperatorTrace(OperatorMode):  # type: ignore[no-untyped-call]
    """Shows every operator below autograd to a function, after it has run.

    Arguments:
        seen: called with the operator's name, the tensors that it returned, and those that it may have overwritten; of
            an overwritten part of a larger tensor, that one as well.
    """

    def __init__(self, seen: Seen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        if name not in _SAME_BYTES:
            made = tensors_in(result)
            self._seen(name, made, _overwritten(func, name, args, kwargs or {}))
        return result


def _overwritten(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    schema = func._schema
    given = [
        *zip(schema.arguments, args, strict=False),
        *((a, kwargs[a.name]) for a in schema.arguments if a.name in kwargs),
    ]
    if any(part in name for part in _UNDECLARED):
        written = [value for _, value in given]
    else:
        written = [
            value for argument, value in given if argument.alias_info is not None and argument.alias_info.is_write
        ]
    tensors = tensors_in(written)
    return [whole for tensor in tensors for whole in (tensor, *_whole(tensor))]


def _whole(tensor: torch.Tensor) -> list[torch.Tensor]:
    """All of the storage that a tensor is a part of, as one row of elements; nothing where it is all of it."""
    if tensor.layout is not torch.strided:
        return []
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    if elements <= tensor.numel():
        return []
    return [tensor.detach().as_strided((elements,), (1,), 0)]
