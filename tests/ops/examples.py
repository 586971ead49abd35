"""Small modules in which the families find something to do: what the contract suite holds every option to.

To add one: an `Example` in `EXAMPLES`. Inputs come from a fixed seed and are small; a module may hold parameters and
buffers. Every option that a family offers in it, whatever its level, is forced and compared with plain PyTorch. The
first example of a family is trained in the smallest budget, too: its values should take 512 B or more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.ops.language import CLASSES, TiedTable, open_attention, texts, tokens, vocabulary

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
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
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


class Residual(nn.Module):
    """Two blocks of a transformer, but for all that is hard in them."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.second = Normed(norm), Normed(copy.deepcopy(norm))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 0.5
        x = x + self.first(x).sigmoid()
        y: torch.Tensor = x + self.second(x).sigmoid()
        return y


def normed(norm: Callable[..., nn.Module], *sizes: Any, **options: Any) -> Callable[[], nn.Module]:
    """A factory of `Normed`; `running`, `frozen` and `pooled` are its own options, others the normalisation's."""
    own = {key: options.pop(key) for key in ("running", "frozen", "pooled") if key in options}
    return lambda: Normed(norm(*sizes, **options), **own)


# Between two products, so that input and output of what is looked at are both of the model's own making.
_RELU = call(lambda x: F.relu(x * 1.5) * 2.0)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """As GPT-2 writes it."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


def convolved(
    make: Callable[..., nn.Module], *sizes: Any, frozen: bool = False, **options: Any
) -> Callable[[], nn.Module]:
    """A factory of a convolution between two products, with a weight that learns or not."""

    def factory() -> nn.Module:
        inner = make(*sizes, **options)
        for parameter in inner.parameters():
            parameter.requires_grad_(not frozen)
        return nn.Sequential(Call(lambda x: x * 1.5), inner, Call(lambda x: x * 2.0))

    return factory


_BESIDE = ("lowtide.convolution_backward_with_input",)

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
        normal(9, 37),
        (F32, BF16, F16, F64),
        ("lowtide.pack_flags", "lowtide.scaled_gradient", "lowtide.scaled_gradient_by_flags"),
    ),
    Example("dropout of a part", ("dropout",), call(lambda x: F.dropout((x * 1.5)[1:, ::2], 0.5) * 2.0), normal(7, 14)),
    Example(
        "max pool",
        ("pooling",),
        call(lambda x: F.max_pool2d(x * 1.5, 2) * 2.0),
        normal(2, 3, 17, 16),
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
    Example(
        "average pool",
        ("stand-ins",),
        call(lambda x: F.avg_pool2d(x * 1.5, 3, 2, 1) * 2.0),
        normal(2, 3, 17, 16),
        (F32, BF16, F64),
        ("lowtide.without_input",),
    ),
    Example(
        "adaptive pool", ("stand-ins",), call(lambda x: F.adaptive_avg_pool2d(x * 1.5, 3) * 2.0), normal(2, 3, 9, 8)
    ),
    Example(
        "adaptive max pool",
        ("stand-ins",),
        call(lambda x: F.adaptive_max_pool2d(x * 1.5, 3) * 2.0),
        normal(2, 3, 9, 8),
        (F32, BF16),
    ),
    Example(
        "average pool of volumes", ("stand-ins",), call(lambda x: F.avg_pool3d(x * 1.5, 2) * 2.0), normal(2, 3, 5, 6, 4)
    ),
    Example(
        "masked fill",
        ("flags",),
        call(lambda x: (x * 1.5).masked_fill(x * 1.5 > 0.2, -1.0) * 2.0),
        normal(17, 37),
        (F32, BF16),
        ("lowtide.pack_flags", "lowtide.unpack_flags"),
    ),
    Example("where", ("flags",), call(lambda x: torch.where(x.tanh() > 0.5, x * 2.0, x * x) * 2.0), normal(17, 37)),
    Example(
        "clamp",
        ("flags",),
        call(lambda x: (x * 1.5).clamp(-0.5, 0.7) * 2.0),
        normal(2, 9, 7, 5, layout=torch.channels_last),
        (F32, F16),
    ),
    Example("gelu as bytes", ("compression",), call(lambda x: F.gelu(x * 1.5) * 2.0), normal(33, 67), (F32, BF16)),
    Example(
        "products as bytes",
        ("compression",),
        lambda: nn.Sequential(nn.Linear(67, 40), nn.SiLU(), nn.Linear(40, 31)),
        normal(32, 67),
        kernels=("lowtide.compress", "lowtide.decompress"),
    ),
    Example(
        "convolutions as bytes",
        ("compression",),
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3, bias=False), nn.BatchNorm2d(4)),
        normal(3, 3, 17, 13),
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
    Example(
        "batch norm of frozen scales", ("batch norm",), normed(nn.BatchNorm2d, 32, frozen=True), normal(8, 32, 5, 5)
    ),
    Example("instance norm", ("batch norm",), normed(nn.InstanceNorm2d, 32, affine=True), normal(2, 32, 9, 9)),
    Example(
        "batch norm in place",
        ("batch norm", "batch norm in place"),
        normed(nn.BatchNorm2d, 33),
        normal(3, 33, 17, 16),
        (F32, F64, BF16),
        kernels=("lowtide.batch_norm_backward_over",),
    ),
    Example("layer norm", ("layer norm",), normed(nn.LayerNorm, 48), normal(5, 11, 48), (F32, F64)),
    Example("layer norm of planes", ("layer norm",), normed(nn.LayerNorm, (6, 8)), normal(40, 6, 8)),
    Example("layer norm of frozen scales", ("layer norm",), normed(nn.LayerNorm, 48, frozen=True), normal(9, 48)),
    Example("layer norm without bias", ("layer norm",), normed(nn.LayerNorm, 48, bias=False), normal(1, 48)),
    Example("rms norm", ("rms norm",), normed(nn.RMSNorm, 48), normal(5, 11, 48), (F32, F64, BF16)),
    Example("rms norm of one row", ("rms norm",), normed(nn.RMSNorm, 48), normal(1, 48)),
    Example("rms norm of frozen scales", ("rms norm",), normed(nn.RMSNorm, 48, frozen=True), normal(7, 48)),
    Example(
        "rms norm in a residual block", ("rms norm",), lambda: Residual(nn.RMSNorm(48)), normal(60, 48), (F32, BF16)
    ),
    Example("group norm", ("group norm",), normed(nn.GroupNorm, 4, 32), normal(18, 32, 7, 5), (F32, F64)),
    Example("group norm of one sample", ("group norm",), normed(nn.GroupNorm, 1, 32), normal(1, 32, 200)),
    Example(
        "convolution", ("convolution",), convolved(nn.Conv2d, 5, 7, 3), normal(3, 5, 9, 11), (F32, F64, BF16), _BESIDE
    ),
    Example("strided 1x1 convolution", ("convolution",), convolved(nn.Conv2d, 8, 4, 1, 2), normal(2, 8, 10, 10)),
    Example("depthwise convolution", ("convolution",), convolved(nn.Conv2d, 8, 8, 3, groups=8), normal(2, 8, 9, 9)),
    Example("grouped convolution", ("convolution",), convolved(nn.Conv2d, 8, 12, 3, groups=4), normal(2, 8, 9, 9)),
    Example("dilated convolution", ("convolution",), convolved(nn.Conv2d, 4, 6, 3, dilation=2), normal(2, 4, 9, 9)),
    Example("transposed convolution", ("convolution",), convolved(nn.ConvTranspose2d, 6, 4, 2, 2), normal(2, 6, 7, 7)),
    Example("convolution of a line", ("convolution",), convolved(nn.Conv1d, 5, 7, 3), normal(3, 5, 17)),
    Example("convolution of a room", ("convolution",), convolved(nn.Conv3d, 3, 4, 2), normal(2, 3, 5, 5, 5)),
    Example(
        "convolution of one image", ("convolution",), convolved(nn.Conv2d, 5, 7, 3, bias=False), normal(1, 5, 9, 9)
    ),
    Example("frozen convolution", ("convolution",), convolved(nn.Conv2d, 5, 7, 3, frozen=True), normal(3, 5, 9, 9)),
    Example(
        "convolution channels-last",
        ("convolution",),
        convolved(nn.Conv2d, 5, 7, 3),
        normal(3, 5, 9, 11, layout=torch.channels_last),
    ),
    Example(
        "convolution in parts",
        ("convolution algorithms",),
        convolved(nn.Conv2d, 16, 24, 3, padding=1),
        normal(5, 16, 60, 60),
        (F32, BF16),
        ("lowtide.convolution_in_parts", "lowtide.convolution_by"),
    ),
    Example(
        "convolution in parts channels-last",
        ("convolution algorithms",),
        convolved(nn.Conv2d, 16, 24, 3),
        normal(5, 16, 40, 40, layout=torch.channels_last),
    ),
    Example("gelu in steps", ("pointwise",), call(_gelu), normal(7, 21, 48), (F32, F64, BF16), ("lowtide.tiled",)),
    Example(
        "gate", ("pointwise",), call(lambda x: F.silu(x * 1.5) * torch.sigmoid(x) * 2.0), normal(33, 331), (F32, BF16)
    ),
    Example("gate of halves", ("pointwise",), call(lambda x: F.relu(x[..., :99]) * x[..., 99:] * 2.0), normal(70, 198)),
    Example(
        "gate of halves in vectors",
        ("pointwise",),
        call(lambda x: F.silu(x[..., :64]) * x[..., 64:] * 2.0),
        normal(70, 128),
        (F32, BF16),
        ("lowtide.tiled_by_rows",),
    ),
    Example("gate across", ("pointwise",), call(lambda x: torch.tanh(x.t() * 1.5) * x.t() * 2.0), normal(80, 77)),
    Example("scaled rows", ("pointwise",), call(lambda x: (x * x[:1] + x[:, :1]) * 2.0), normal(70, 99)),
    Example(
        "gate channels-last",
        ("pointwise",),
        call(lambda x: (F.silu(x * 1.5) * x * 2.0).mean((2, 3))),
        normal(2, 8, 32, 16, layout=torch.channels_last),
    ),
    Example(
        "vocabulary",
        ("linear cross-entropy",),
        vocabulary(),
        texts(rows=16),
        (F32, F64, BF16),
        ("lowtide.linear_cross_entropy_with_gradients",),
    ),
    Example("vocabulary tied", ("linear cross-entropy",), vocabulary(tied=True, bias=False, reduction="sum"), texts()),
    Example("vocabulary turned", ("linear cross-entropy",), vocabulary(turned=True), texts()),
    Example("vocabulary frozen", ("linear cross-entropy",), vocabulary(frozen=True), texts(whole=True)),
    Example(
        "vocabulary with weights",
        ("linear cross-entropy",),
        vocabulary(weight=torch.linspace(0.0, 2.0, CLASSES), ignore_index=7),
        texts(ignored=7),
        (F32, F64),
    ),
    Example("vocabulary, a loss per row", ("linear cross-entropy",), vocabulary(reduction="none"), texts()),
    Example("vocabulary in autocast", ("linear cross-entropy",), vocabulary(autocast=True), texts(whole=True)),
    Example("vocabulary widened", ("linear cross-entropy",), vocabulary(wide=True, bias=False), texts(), (BF16,)),
    Example("vocabulary with logits", ("linear cross-entropy",), vocabulary(returned=True), texts()),
    Example("vocabulary shifted", ("linear cross-entropy",), vocabulary(shifted=True), texts(rows=16), (F32, BF16)),
    Example(
        "vocabulary shifted, then widened",
        ("linear cross-entropy",),
        vocabulary(shifted=True, autocast=True),
        texts(rows=16),
    ),
    Example(
        "cross-entropy alone",
        ("cross-entropy",),
        call(lambda x: F.cross_entropy(x * 1.5, torch.arange(2100) % 261, ignore_index=3)),
        normal(2100, 261),
        (F32, F64, BF16),
    ),
    Example("attention in the open", ("attention",), open_attention(), normal(4, 128, 16), (F32, F64)),
    Example(
        "attention causal", ("attention",), open_attention(mask="causal", wide=True), normal(4, 128, 16), (F32, BF16)
    ),
    Example("attention padded", ("attention",), open_attention(mask="padding", scale=2.8), normal(5, 120, 16)),
    Example("attention with dropout", ("attention",), open_attention(dropout=0.2), normal(4, 128, 16)),
    Example(
        "attention of torch with dropout",
        ("attention",),
        open_attention(dropout=0.1, mask="causal", sdpa=True),
        normal(4, 128, 16),
    ),
    Example("tied embedding", ("tied embedding",), TiedTable, tokens, (F32, F64)),
]
