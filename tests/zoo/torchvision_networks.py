"""Networks of torchvision: their own graphs, fewer channels, so that weights do not outweigh activations."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.networks import Network, WithLoss  # lets torchvision be imported where its own operators are missing
from tests.zoo.inputs import films, images, scenes

from torchvision.models._utils import IntermediateLayerGetter  # isort: skip
from torchvision.models.resnet import Bottleneck, ResNet  # isort: skip

_CLASSES = 7


class WithAuxiliaryLoss(nn.Module):
    """A classifier or segmenter that also answers from the middle, as a named tuple or a dict, with its loss."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found: Any = self.body(x)
        answers = list(found.values()) if isinstance(found, dict) else [a for a in found if a is not None]
        return sum((0.4 * F.cross_entropy(a, y) for a in answers[1:]), F.cross_entropy(answers[0], y))


def _vgg16() -> nn.Module:
    from torchvision.models import vgg

    widths = [w if w == "M" else w // 8 for w in vgg.cfgs["D"]]
    with torch.device("meta"):  # its classifier of a hundred million weights is not made
        model = vgg.VGG(nn.Identity(), init_weights=False)
    model.features = vgg.make_layers(widths)
    model.avgpool = nn.AdaptiveAvgPool2d((2, 2))
    model.classifier = nn.Sequential(
        nn.Linear(64 * 4, 64), nn.ReLU(True), nn.Dropout(), nn.Linear(64, 64), nn.ReLU(True), nn.Dropout(),
        nn.Linear(64, _CLASSES),
    )  # fmt: skip
    return WithLoss(model)


def _googlenet() -> nn.Module:
    from torchvision.models.googlenet import BasicConv2d, GoogLeNet, Inception, InceptionAux

    class Narrow(BasicConv2d):
        """An eighth of the channels."""

        def __init__(self, of: int, to: int, **options: Any) -> None:
            super().__init__(of if of == 3 else of // 8, to // 8, **options)

    blocks = [functools.partial(kind, conv_block=Narrow) for kind in (Inception, InceptionAux)]
    model = GoogLeNet(_CLASSES, aux_logits=True, blocks=[Narrow, *blocks], init_weights=False)
    model.fc = nn.Linear(1024 // 8, _CLASSES)
    for auxiliary in (model.aux1, model.aux2):
        auxiliary.fc1, auxiliary.fc2 = nn.Linear(2048 // 8, 64), nn.Linear(64, _CLASSES)
    return WithAuxiliaryLoss(model)


def _densenet121() -> nn.Module:
    from torchvision.models import DenseNet

    return WithLoss(DenseNet(8, (2, 2, 2, 2), 16, bn_size=2, drop_rate=0.1, num_classes=_CLASSES))


def _inception_v3() -> nn.Module:
    from torchvision.models import Inception3, inception

    class Narrow(inception.BasicConv2d):
        """A sixteenth of the channels."""

        def __init__(self, of: int, to: int, **options: Any) -> None:
            super().__init__(of if of == 3 else of // 16, to // 16, **options)

    kinds = ("InceptionA", "InceptionB", "InceptionC", "InceptionD", "InceptionE", "InceptionAux")
    blocks = [functools.partial(getattr(inception, kind), conv_block=Narrow) for kind in kinds]
    model = Inception3(_CLASSES, aux_logits=False, inception_blocks=[Narrow, *blocks], init_weights=False)
    model.fc = nn.Linear(2048 // 16, _CLASSES)
    return WithLoss(model)


class _NarrowBottleneck(Bottleneck):
    """A quarter of the channels between blocks."""

    expansion = 1


def _backbone(**layers: str) -> nn.Module:
    """ResNet-50's stem, and one block of each stage, dilated as for segmentation, whose answers go by these names."""
    dilated = [False, True, True]
    body = ResNet(_NarrowBottleneck, [1, 1, 1, 1], width_per_group=8, replace_stride_with_dilation=dilated)
    return IntermediateLayerGetter(body, return_layers=layers)


def _fcn_resnet50() -> nn.Module:
    from torchvision.models.segmentation.fcn import FCN, FCNHead

    return WithAuxiliaryLoss(FCN(_backbone(layer4="out", layer3="aux"), FCNHead(512, 3), FCNHead(256, 3)))


def _shufflenet() -> nn.Module:
    from torchvision.models import ShuffleNetV2

    return WithLoss(ShuffleNetV2([2, 1, 1], [8, 16, 32, 64, 64], num_classes=_CLASSES))


def _deeplabv3() -> nn.Module:
    from torchvision.models.segmentation.deeplabv3 import DeepLabHead, DeepLabV3

    return WithAuxiliaryLoss(DeepLabV3(_backbone(layer4="out"), DeepLabHead(512, 3, (2, 3, 4)), None))


def densenet(in_checkpoints: bool) -> nn.Module:
    """A small DenseNet, with torch's own checkpoints or without."""
    from torchvision.models import DenseNet

    return WithLoss(DenseNet(8, (2, 2), 16, bn_size=2, num_classes=_CLASSES, memory_efficient=in_checkpoints))


def _swin3d() -> nn.Module:
    from torchvision.models.video import swin_transformer

    sizes = {"embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2]}
    return WithLoss(swin_transformer.SwinTransformer3d([2, 4, 4], **sizes, window_size=[2, 2, 2], num_classes=_CLASSES))


def _ssd() -> nn.Module:
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.ssd import SSD

    class Body(nn.Module):
        """Two maps of features."""

        out_channels = (16, 32)

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 4, 1), nn.BatchNorm2d(16), nn.ReLU())
            self.second = nn.Sequential(nn.Conv2d(16, 32, 3, 4, 1), nn.BatchNorm2d(32), nn.ReLU())

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            first = self.first(x)
            return {"0": first, "1": self.second(first)}

    class Detector(nn.Module):
        """The sum of its losses."""

        def __init__(self) -> None:
            super().__init__()
            boxes = DefaultBoxGenerator([[2], [2]])
            self.ssd = SSD(Body(), boxes, (64, 64), 4)

        def forward(self, pictures: list[torch.Tensor], targets: list[dict[str, torch.Tensor]]) -> torch.Tensor:
            return sum(self.ssd(pictures, targets).values(), torch.zeros(()))

    return Detector()


NETWORKS = (
    Network("vgg16", _vgg16, lambda m, b: m(*b), images()),
    Network("googlenet", _googlenet, lambda m, b: m(*b), images(size=64)),
    Network("densenet121", _densenet121, lambda m, b: m(*b), images()),
    Network("inception_v3", _inception_v3, lambda m, b: m(*b), images(size=96)),
    Network("fcn_resnet50", _fcn_resnet50, lambda m, b: m(*b), images(size=32, classes=3, dense=True)),
    # Chosen after the code was written.
    Network("shufflenet", _shufflenet, lambda m, b: m(*b), images(4)),
    Network("deeplabv3", _deeplabv3, lambda m, b: m(*b), images(size=32, classes=3, dense=True)),
    Network("swin3d", _swin3d, lambda m, b: m(*b), films()),
    Network("ssd", _ssd, lambda m, b: m(*b), scenes()),
)
