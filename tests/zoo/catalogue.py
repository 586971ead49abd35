"""Every network of the zoo by name, `library/network`. `tests/networks.py` has GPT-2, a ResNet and a U-Net as well."""

from __future__ import annotations

import lowtide
from tests.networks import Network
from tests.zoo import own_networks, timm_networks, torchvision_networks, transformers_networks

CATALOGUE: dict[str, Network] = {
    f"{library}/{network.name}": network
    for library, networks in (
        ("transformers", transformers_networks.NETWORKS),
        ("timm", timm_networks.NETWORKS),
        ("torchvision", torchvision_networks.NETWORKS),
        ("own", own_networks.NETWORKS),
    )
    for network in networks
}

# More of a kind that another network stands for: `make test` leaves them out, `make test-all` trains them all.
BREADTH = frozenset(
    {
        "transformers/gpt2-all-attended",  # as GPT-2 of `tests/networks.py`
        "transformers/swin",  # torchvision/swin3d: shifted windows
        "transformers/llama",  # transformers/llama-padded
        "transformers/opt",  # transformers/gpt2-default-loss: a decoder
        "transformers/distilbert",  # transformers/bert
        "transformers/mamba2",  # transformers/mamba
        "timm/resnet50",  # the ResNet of `tests/networks.py`
        "timm/mobilenetv2",  # timm/inverted-bottlenecks
        "timm/efficientnet",  # timm/inverted-bottlenecks and timm/convnext: stochastic depth
        "timm/maxvit",  # torchvision/swin3d and timm/inverted-bottlenecks: windows beside convolutions
        "timm/deit",  # transformers/vit
        "torchvision/densenet121",  # the DenseNet of `test_zoo.py`
        "torchvision/googlenet",  # torchvision/shufflenet: branches
        "torchvision/inception_v3",
        "torchvision/deeplabv3",  # the U-Net of `tests/networks.py`: dense predictions
        "own/lstm-two-ways",  # own/lstm
        "own/gru",
        "own/rnn",
        "own/last-layers",  # own/lora: most parameters frozen
        "transformers/wav2vec2",  # broken into several graphs, as own/lstm-packed
        "torchvision/ssd",
        "torchvision/fcn_resnet50",  # the U-Net of `tests/networks.py`
        "torchvision/vgg16",
    }
)

# What lowtide refuses, and what it says then.
REFUSED: dict[str, tuple[type[lowtide.LowtideError], str]] = {
    "own/experts": (lowtide.CaptureError, "no graph of this model was captured.*nonzero.*depends on input Tensor data"),
}

# Networks of which parts with a backward of their own run between the graphs, in the reserve. How much those take is
# known once they have run: the smallest budget named before may be too small.
IN_PIECES = frozenset({"own/lstm-packed"})
