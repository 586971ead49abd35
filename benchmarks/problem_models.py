"""The models behind `benchmarks/problems`: unmodified, at the sizes at which people train them, their losses inside.

Batches of convolutional networks are Checkmate's and MONeT's where those name one. A model's name is the file's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tests import torchvision_shim
from torch import nn

torchvision_shim.install()

MACHINE = "a100"
"""Whose roofline gives the seconds of every problem."""

Batch = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """One model with its batch.

    Arguments:
        source: the library that it comes from.
        size: of the batch, for people.
        make: the module, its loss inside; made on the meta device.
        batch: what it is called with, by keyword.
    """

    name: str
    source: str
    size: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]


class WithLoss(nn.Module):
    """A network that returns logits, or logits and auxiliary ones, and the cross entropy of all of them."""

    def __init__(self, body: nn.Module, auxiliary: float = 0.3) -> None:
        super().__init__()
        self.body, self.auxiliary = body, auxiliary

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        outputs = self.body(x)
        if isinstance(outputs, torch.Tensor):
            return F.cross_entropy(outputs, y)
        first, *others = (F.cross_entropy(o, y) for o in outputs if o is not None)
        return first + self.auxiliary * sum(others)


class LossAlone(nn.Module):
    """A network that has its loss inside and returns nothing else: what it computes on the way need not be there at its end."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        return self.body(**batch).loss


class UNet(nn.Module):
    """The U-Net of Ronneberger et al. (2015), padded and with batch norm as it is trained today."""

    def __init__(self, width: int = 64, depth: int = 4, classes: int = 2) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(_block(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths[:-1])
        self.join = nn.ModuleList(_block(2 * w, w) for w in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down[:-1]:
            skips.append(block(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.down[-1](x)
        for level in reversed(range(len(skips))):
            x = self.join[level](torch.cat([skips[level], self.up[level](x)], dim=1))
        return self.head(x)


def _block(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
    )  # fmt: skip


def _images(count: int, height: int, width: int, *, dense: bool = False) -> Batch:
    shape = (count, height, width) if dense else (count,)
    return {"x": torch.empty(count, 3, height, width), "y": torch.empty(shape, dtype=torch.int64)}


def _pixels(count: int, size: int) -> Batch:
    labels = torch.empty(count, dtype=torch.int64)
    return {"pixel_values": torch.empty(count, 3, size, size), "labels": labels}


def _tokens(count: int, length: int) -> Batch:
    tokens = torch.empty(count, length, dtype=torch.int64)
    return {"input_ids": tokens, "labels": torch.empty_like(tokens)}


def _torchvision(name: str, **options: Any) -> nn.Module:
    from torchvision import models

    auxiliary = 0.4 if name == "inception_v3" else 0.3
    return WithLoss(models.get_model(name, weights=None, **options), auxiliary)


def _timm(name: str) -> nn.Module:
    import timm

    return WithLoss(timm.create_model(name))


def _gpt2(layers: int, width: int, heads: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads, use_cache=False))
    model.loss_type = "ForCausalLM"  # its default; said, it is not warned of
    return model


def _bert_large() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    return BertForMaskedLM(config)


def _vit_large() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    config.num_labels = 1000
    return ViTForImageClassification(config)


def _of_torchvision(name: str, model: str, count: int, size: int = 224, **options: Any) -> Model:
    text = f"{count} images of {size} x {size}"
    make = partial(_torchvision, model, **options)
    return Model(name, "torchvision", text, make, partial(_images, count, size, size))


def _of_timm(name: str, model: str, count: int, size: int = 224) -> Model:
    text = f"{count} images of {size} x {size}"
    return Model(name, "timm", text, partial(_timm, model), partial(_images, count, size, size))


def _gpt(name: str, count: int, length: int, layers: int, width: int, heads: int) -> Model:
    text = f"{count} x {length} tokens"
    return Model(name, "transformers", text, partial(_gpt2, layers, width, heads), partial(_tokens, count, length))


PROBLEMS = {
    m.name: m
    for m in (
        Model(
            "unet", "own", "11 images of 416 x 608", lambda: WithLoss(UNet()),
            partial(_images, 11, 416, 608, dense=True),
        ),
        _gpt("gpt2", 8, 1024, 12, 768, 12),
        _of_torchvision("resnet50", "resnet50", 184),
        _of_torchvision("mobilenet_v2", "mobilenet_v2", 272),
        _of_torchvision("densenet121", "densenet121", 128),
        _of_torchvision("resnet152", "resnet152", 96),
        _of_torchvision("vgg16", "vgg16", 176),
        _of_torchvision("vgg19", "vgg19", 128),
        _of_torchvision("googlenet", "googlenet", 320, init_weights=False),
        _of_torchvision("inception_v3", "inception_v3", 128, 299, init_weights=False),
        _gpt("gpt2_medium", 8, 1024, 24, 1024, 16),
        _gpt("gpt2_large", 4, 1024, 36, 1280, 20),
        _gpt("gpt2_xl", 4, 1024, 48, 1600, 25),
        Model("bert_large", "transformers", "32 x 512 tokens", _bert_large, partial(_tokens, 32, 512)),
        Model("vit_large", "transformers", "64 images of 224 x 224", _vit_large, partial(_pixels, 64, 224)),
        _of_timm("swin_tiny", "swin_tiny_patch4_window7_224", 128),
        _of_timm("swin_base", "swin_base_patch4_window7_224", 64),
    )
}  # fmt: skip

SHALLOW = {
    m.name: m
    for m in (
        _of_torchvision("resnet50", "resnet50", 16),
        _gpt("gpt2", 4, 1024, 2, 768, 12),
    )
}
"""From which `benchmarks.deep_networks` makes deep ones."""
