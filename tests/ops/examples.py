"""Small modules in which the families find something to do: what the contract suite holds every option to.

To add one: an `Example` in `EXAMPLES`. Inputs come from a fixed seed and are small; a module may hold parameters and
buffers. Every option that a family offers in it, whatever its level, is forced and compared with plain PyTorch. The
first example of a family is trained in the smallest budget, too: its values should take 512 B or more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Example:
    """One module with its inputs.

    Arguments:
        name: of the test; unique.
        families: names of the families that have to find something here; others may as well.
        make: the module; the seed is set before.
        inputs: what it is called with, in a dtype. Floating inputs that require a gradient have theirs compared, too.
        dtypes: in which it is run; the module is moved to each.
        kernels: operators that have to occur among the implementations: `"lowtide.pack_positive"`.
    """

    name: str
    families: tuple[str, ...]
    make: Callable[[], nn.Module]
    inputs: Callable[[torch.dtype], tuple[Any, ...]]
    dtypes: tuple[torch.dtype, ...] = (F32,)
    kernels: tuple[str, ...] = ()


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def call(function: Callable[..., Any]) -> Callable[[], nn.Module]:
    """A factory of `Call`."""
    return lambda: Call(function)


def normal(
    *shape: int, layout: torch.memory_format = torch.contiguous_format, grad: bool = True
) -> Callable[[torch.dtype], tuple[torch.Tensor]]:
    """One tensor of normal deviates, the same for every dtype up to rounding."""

    def make(dtype: torch.dtype) -> tuple[torch.Tensor]:
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
        return (x.to(dtype).contiguous(memory_format=layout).requires_grad_(grad),)

    return make


def _transposed(dtype: torch.dtype) -> tuple[torch.Tensor]:
    """Rows that lie across memory."""
    (x,) = normal(7, 5, grad=False)(dtype)
    return (x.t().requires_grad_(),)


# Between two products, so that input and output of what is looked at are both of the model's own making.
_RELU = call(lambda x: F.relu(x * 1.5) * 2.0)

EXAMPLES: list[Example] = [
    Example("relu", ("relu",), _RELU, normal(9, 37), (F32, BF16, F64)),
    Example("relu channels-last", ("relu",), _RELU, normal(2, 3, 5, 5, layout=torch.channels_last)),
    Example("relu transposed", ("relu",), _RELU, _transposed),
    Example("relu empty", ("relu",), _RELU, normal(0, 4)),
    Example("relu in place", ("relu",), call(lambda x: F.relu(x * 1.5, inplace=True) * 2.0), normal(4, 9)),
    Example("over dying values", ("in-place",), call(lambda x: torch.tanh((x * 1.5).exp() + 1.0) * 2.0), normal(9, 37)),
]
