"""Networks of timm, on small images."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.networks import Network, WithLoss
from tests.zoo.inputs import Batches, images


def _timm(name: str, model: str, batches: Batches | None = None, **options: Any) -> Network:
    def make() -> nn.Module:
        import timm

        return WithLoss(timm.create_model(model, num_classes=7, **options))

    return Network(name, make, lambda m, b: m(*b), batches or images())


NETWORKS = (
    _timm("resnet50", "resnet50", layers=(1, 1, 1, 1), channels=(16, 32, 64, 128)),
    _timm("mobilenetv2", "mobilenetv2_035", images(4, 64), drop_rate=0.2),
    _timm("inverted-bottlenecks", "test_efficientnet", images(4, 64), drop_rate=0.2, drop_path_rate=0.2),
    _timm("efficientnet", "efficientnet_b0", drop_rate=0.2, drop_path_rate=0.2),
    _timm("convnext", "convnext_atto", depths=(1, 1, 2, 1), dims=(16, 32, 64, 128), drop_path_rate=0.2),
    # Chosen after the code was written.
    _timm(
        "maxvit",
        "maxvit_rmlp_pico_rw_256",
        images(size=64),
        img_size=64,
        embed_dim=(32, 32, 32, 32),
        depths=(1, 1, 1, 1),
    ),
    _timm("deit", "deit_tiny_patch16_224", images(size=64), img_size=64, depth=2, embed_dim=48, drop_rate=0.1),
)
