"""The networks that train without a graph in the tables, at sizes where activations dominate, from seeds."""

from __future__ import annotations

from tests import torchvision_shim
from tests.eager_engine.adversaries import Adversaries
from tests.eager_engine.networks import (
    EagerNetwork,
    adam,
    adamw,
    bert,
    compete,
    descend,
    duel,
    noise,
    pairs,
    sentences,
    sgd,
    tokens,
    trees,
)
from tests.eager_engine.sequences import Lengths, Reader
from tests.eager_engine.trees import TreeReader
from tests.networks import UNet, WithLoss, gpt2
from torch import nn

torchvision_shim.install()


def _resnet50() -> nn.Module:
    """Half as wide as usual: at the sizes of a small machine, weights and their gradients would hide the activations."""
    from timm.models.resnet import Bottleneck, ResNet

    return WithLoss(ResNet(Bottleneck, (3, 4, 6, 3), num_classes=100, base_width=64, channels=(32, 64, 128, 256)))


NETWORKS = {
    n.name: n
    for n in (
        EagerNetwork("resnet50", _resnet50, sgd, pairs((12, 3, 112, 112), (12,), 100), descend),
        EagerNetwork(
            "unet", lambda: WithLoss(UNet(width=12, depth=3)), adam, pairs((4, 3, 96, 96), (4, 96, 96), 3), descend
        ),
        EagerNetwork("gpt2", lambda: gpt2(4, 128, 128), adamw, tokens(97, 6, 128), descend),
        EagerNetwork("bert", lambda: bert(4, 128, 512, 128), adamw, tokens(512, 6, 128), descend),
        EagerNetwork("bilstm", lambda: Reader(1000, 64, 128, 2), adam, sentences(1000, 64, (48,), 4), descend),
        EagerNetwork("treelstm", lambda: TreeReader(128, 128, 4), adam, trees(128, 128, 48, 4), descend),
        EagerNetwork("gan", lambda: Adversaries(64, 128, unrolled=10), duel, noise((512, 64)), compete),
        EagerNetwork(
            "lengths", lambda: Lengths(1000, 128, 4, 4), adamw, sentences(1000, 8, (96, 128, 48, 144, 80), 4), descend
        ),
    )
}
"""By name."""
CAPTURED = ("resnet50", "unet", "gpt2", "bert")
"""Those that a compiler captures whole, so that a plan can be made of their step."""
