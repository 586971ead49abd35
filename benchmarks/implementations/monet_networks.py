"""The five networks of MONeT's tables, at any batch: the loss is the sum of what they return.

A. Shah et al., "Memory Optimization for Deep Networks", ICLR 2021. Four are torchvision's, GoogLeNet with its auxiliary
outputs. The U-Net is that of three to one channels which upsamples bilinearly: kept whole it takes the bytes that MONeT
states for PyTorch, and the one with transposed convolutions takes 5 % more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tests import torchvision_shim
from torch import nn

torchvision_shim.install()


@dataclass(frozen=True)
class Network:
    """One network of the tables.

    Arguments:
        make: without the loss.
        batch: images, of the published tables.
        small: images of a step that a few CPU cores run.
        height, width: of an image with three channels.
        shrink: how many times smaller the sides of the few images are.
    """

    name: str
    make: Callable[[], nn.Module]
    batch: int
    small: int
    height: int = 224
    width: int = 224
    shrink: int = 1

    def build(self) -> nn.Module:
        """The network with its loss inside, in training mode."""
        return Summed(self.make()).train()

    def few_images(self) -> torch.Tensor:
        """The batch that a few CPU cores run."""
        return self.images(self.small, self.shrink)

    def images(self, count: int, shrink: int = 1) -> torch.Tensor:
        """A batch from a fixed seed; without bytes where the default device is "meta".

        Arguments:
            shrink: how many times smaller the sides are.
        """
        shape = (count, 3, self.height // shrink, self.width // shrink)
        if torch.get_default_device().type == "meta":
            return torch.empty(shape)
        return torch.randn(shape, generator=torch.Generator().manual_seed(1))


class Summed(nn.Module):
    """A network and the sum of all that it returns."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.body(x)
        if isinstance(outputs, torch.Tensor):
            return outputs.sum()
        total, *others = (o.sum() for o in outputs if o is not None)
        for other in others:
            total = total + other
        return total


class BilinearUNet(nn.Module):
    """A U-Net with batch norm that upsamples bilinearly and halves its channels in the convolutions behind."""

    def __init__(self, classes: int = 1, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [min(width << level, width << (depth - 1)) for level in range(depth + 1)]
        self.down = nn.ModuleList(_twice(a, b, b) for a, b in zip([3, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(_twice(2 * a, a, b) for a, b in zip(widths, [width, *widths[:-2]], strict=False))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for block in self.down[:-1]:
            skips.append(block(x if not skips else F.max_pool2d(skips[-1], 2)))
        x = self.down[-1](F.max_pool2d(skips[-1], 2))
        for block, skip in zip(reversed(self.up), reversed(skips), strict=True):
            up = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
            x = block(torch.cat([skip, up], dim=1))
        return self.head(x)


def _twice(channels: int, inner: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, inner, 3, padding=1), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
        nn.Conv2d(inner, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
    )  # fmt: skip


def _torchvision(name: str, **options: bool) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torchvision import models

        return models.get_model(name, weights=None, **options)

    return make


NETWORKS = {
    n.name: n
    for n in (
        Network("resnet50", _torchvision("resnet50"), 184, 8),
        Network("googlenet", _torchvision("googlenet", init_weights=False, aux_logits=True), 320, 16),
        Network("unet", BilinearUNet, 11, 1, 416, 608, 2),
        Network("vgg16", _torchvision("vgg16"), 176, 8),
        Network("mobilenet_v2", _torchvision("mobilenet_v2"), 272, 16),
    )
}
