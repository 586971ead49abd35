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


class Normed(nn.Module):
    """A normalisation between two products, with scales of both signs and one that is zero."""

    def __init__(self, norm: nn.Module, *, running: bool = False, frozen: bool = False, pooled: bool = False) -> None:
        super().__init__()
        self.norm, self.running, self.pooled = norm, running, pooled
        generator = torch.Generator().manual_seed(2)
        for name, parameter in norm.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            values = values.sign() * values.abs().clamp_min(0.1)
            parameter.data = (
                values if name == "bias" else values.flatten().index_fill(0, torch.tensor(3), 0).view_as(values)
            )
            parameter.requires_grad_(not frozen)

    def train(self, mode: bool = True) -> Normed:
        super().train(mode)
        self.norm.train(mode and not self.running)
        return self

    def forward(self, x: torch.Tensor) -> Any:
        y = self.norm(x * 1.5) * 2.0
        return y.mean((2, 3)) if self.pooled else y  # else the outer gradient's layout says in which order one sums


def normed(norm: Callable[..., nn.Module], *sizes: Any, **options: Any) -> Callable[[], nn.Module]:
    """A factory of `Normed`; `running`, `frozen` and `pooled` are its own options, others the normalisation's."""
    own = {key: options.pop(key) for key in ("running", "frozen", "pooled") if key in options}
    return lambda: Normed(norm(*sizes, **options), **own)


# Between two products, so that input and output of what is looked at are both of the model's own making.
_RELU = call(lambda x: F.relu(x * 1.5) * 2.0)

EXAMPLES: list[Example] = [
    Example("relu", ("activations",), _RELU, normal(9, 37), (F32, BF16, F64), ("lowtide.masked_gradient",)),
    Example("relu channels-last", ("activations",), _RELU, normal(2, 3, 5, 5, layout=torch.channels_last)),
    Example("relu transposed", ("activations",), _RELU, _transposed),
    Example("relu empty", ("activations",), _RELU, normal(0, 4)),
    Example("relu in place", ("activations",), call(lambda x: F.relu(x * 1.5, inplace=True) * 2.0), normal(4, 9)),
    Example("relu of a number", ("activations",), _RELU, normal()),
    Example("relu6", ("activations",), call(lambda x: F.relu6(x * 4.0) * 2.0), normal(4, 9), (F32, BF16, F16)),
    Example(
        "relu6 in place",
        ("activations",),
        call(lambda x: F.relu6(x * 4.0, inplace=True) * 2.0),
        normal(2, 3, 5, 5, layout=torch.channels_last),
    ),
    Example(
        "hardtanh", ("activations",), call(lambda x: F.hardtanh(x * 1.5, -0.3, 0.7) * 2.0), normal(7, 13), (F32, BF16)
    ),
    Example(
        "threshold", ("activations",), call(lambda x: F.threshold(x * 1.5, 0.1, -2.0) * 2.0), normal(7, 13), (F32, F16)
    ),
    Example(
        "leaky relu", ("activations",), call(lambda x: F.leaky_relu(x * 1.5) * 2.0), normal(7, 13), (F32, BF16, F64)
    ),
    Example(
        "leaky relu in place", ("activations",), call(lambda x: F.leaky_relu(x * 1.5, 0.2, True) * 2.0), normal(7, 13)
    ),
    Example(
        "hardsigmoid", ("activations",), call(lambda x: F.hardsigmoid(x * 4.0) * 2.0), normal(7, 13), (F32, BF16, F64)
    ),
    Example("elu", ("activations",), call(lambda x: F.elu(x * 1.5, 1.3) * 2.0), normal(7, 13), (F32, F64)),
    Example("selu", ("activations",), call(lambda x: F.selu(x * 1.5) * 2.0), normal(7, 13)),
    Example(
        "dropout",
        ("dropout",),
        call(lambda x: F.dropout(x * 1.5, 0.3) * 2.0),
        normal(7, 13),
        (F32, BF16, F16, F64),
        ("lowtide.pack_flags", "lowtide.scaled_gradient", "lowtide.scaled_gradient_by_flags"),
    ),
    Example("dropout of a part", ("dropout",), call(lambda x: F.dropout((x * 1.5)[1:, ::2], 0.5) * 2.0), normal(7, 14)),
    Example(
        "max pool",
        ("pooling",),
        call(lambda x: F.max_pool2d(x * 1.5, 2) * 2.0),
        normal(2, 3, 9, 8),
        (F32, BF16, F64),
        (
            "lowtide.pool_gradient_from_indices",
            "lowtide.pack_pool_indices",
            "lowtide.max_pool_packed",
            "lowtide.pool_gradient",
        ),
    ),
    Example(
        "max pool channels-last, overlapping",
        ("pooling",),
        call(lambda x: F.max_pool2d(x * 1.5, 3, 2, 1) * 2.0),
        normal(2, 5, 9, 8, layout=torch.channels_last),
        (F32, BF16),
    ),
    Example("max pool of rows", ("pooling",), call(lambda x: F.max_pool1d(x * 1.5, 3, 2, 1) * 2.0), normal(2, 5, 17)),
    Example("max pool of volumes", ("pooling",), call(lambda x: F.max_pool3d(x * 1.5, 2) * 2.0), normal(2, 3, 5, 6, 4)),
    Example(
        "max pool with indices for the caller",
        ("pooling",),
        call(lambda x: F.max_pool2d(x * 1.5, 2, return_indices=True)),
        normal(2, 3, 8, 8),
    ),
    Example("over dying values", ("in-place",), call(lambda x: torch.tanh((x * 1.5).exp() + 1.0) * 2.0), normal(9, 37)),
    Example("batch norm", ("batch norm",), normed(nn.BatchNorm2d, 32), normal(8, 32, 5, 5), (F32, F64, BF16)),
    Example(
        "batch norm channels-last",
        ("batch norm",),
        normed(nn.BatchNorm2d, 32, pooled=True),
        normal(3, 32, 7, 5, layout=torch.channels_last),
    ),
    Example("batch norm of rows", ("batch norm",), normed(nn.BatchNorm1d, 32), normal(96, 32)),
    Example("batch norm of one sample", ("batch norm",), normed(nn.BatchNorm1d, 32), normal(1, 32, 65)),
    Example(
        "batch norm without running statistics",
        ("batch norm",),
        normed(nn.BatchNorm3d, 32, track_running_stats=False),
        normal(2, 32, 4, 3, 5),
    ),
    Example(
        "batch norm without scales", ("batch norm",), normed(nn.BatchNorm2d, 32, affine=False), normal(8, 32, 5, 5)
    ),
    Example(
        "frozen batch norm",
        ("batch norm",),
        normed(nn.BatchNorm2d, 32, running=True, frozen=True),
        normal(8, 32, 5, 5),
        (F32, BF16),
    ),
    Example("instance norm", ("batch norm",), normed(nn.InstanceNorm2d, 32, affine=True), normal(2, 32, 9, 9)),
    Example("layer norm", ("layer norm",), normed(nn.LayerNorm, 48), normal(5, 11, 48), (F32, F64)),
    Example("layer norm of planes", ("layer norm",), normed(nn.LayerNorm, (6, 8)), normal(40, 6, 8)),
    Example("layer norm without bias", ("layer norm",), normed(nn.LayerNorm, 48, bias=False), normal(1, 48)),
    Example("group norm", ("group norm",), normed(nn.GroupNorm, 4, 32), normal(18, 32, 7, 5), (F32, F64)),
    Example("group norm of one sample", ("group norm",), normed(nn.GroupNorm, 1, 32), normal(1, 32, 200)),
]
