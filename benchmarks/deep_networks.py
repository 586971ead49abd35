"""Networks of a thousand layers and more, by name: made in seconds from shallow captured ones. Needs no torch.

The ResNets are SuperNeurons' (Wang et al., PPoPP 2018): bottlenecks in four stages of n1, n2, n3 and n4 blocks, that is
3 * (n1 + n2 + n3 + n4) + 2 weighted layers, of 16 images of 224 x 224; its deepest test has n1 = 6, n2 = 32, n4 = 6 and
varies n3. Their weighted layers are a quarter of what that paper counts as basic layers (convolution, normalisation,
activation, sum): `superneurons_2498` has 10^4 of those. Seconds are an A100's by roofline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from lowtide.ir.graph import Graph
from lowtide.ir.repetition import deepened
from lowtide.ir.text import load_graph

FOLDER = Path(__file__).parent / "problems" / "shallow"
_FAMILY = re.compile(r"superneurons_(\d+)")
_STAGES = ("body.layer1", "body.layer2", "body.layer3", "body.layer4")

RESNETS = {
    "resnet_1000_operators": (3, 4, 20, 3),
    "resnet_1000_layers": (12, 64, 248, 12),
}
"""Blocks per stage: about a thousand operators in all; and the 1,010 weighted layers of SuperNeurons' "ResNet-1024"."""
DEPTHS = (254, 506, 1010, 1919, 2498)
"""Weighted layers of SuperNeurons' family; it reports 1,920 as the deepest that its 12 GB hold with 16 images."""


def names() -> list[str]:
    """Every deep network, the smallest first; `superneurons_N` is made for any other N = 3 * n3 + 134, too."""
    return ["resnet_1000_operators", "superneurons_254", "superneurons_506", "resnet_1000_layers", "gpt2_200_layers",
            *(f"superneurons_{d}" for d in DEPTHS if d > 506)]  # fmt: skip


def deep(name: str) -> Graph:
    """Makes a deep network.

    Arguments:
        name: one of `names()`, or `superneurons_N`.

    Raises:
        KeyError: if there is no such network.
    """
    if name == "gpt2_200_layers":
        return _deepened(name, "gpt2", {"transformer.h": 200})
    if name in RESNETS:
        return _resnet(name, RESNETS[name])
    family = _FAMILY.fullmatch(name)
    blocks, rest = divmod(int(family.group(1)) - 2, 3) if family else (0, 1)
    if rest or blocks < 46:
        raise KeyError(
            f"no deep network {name!r}; there are {', '.join(names())}, and superneurons_N for N = 140, 143, ..."
        )
    return _resnet(name, (6, 32, blocks - 44, 6))


def _resnet(name: str, stages: tuple[int, int, int, int]) -> Graph:
    """Bottlenecks per stage; the first of a stage halves the image and is no repetition of the others."""
    return _deepened(name, "resnet50", {stage: n - 1 for stage, n in zip(_STAGES, stages, strict=True)})


def _deepened(name: str, shallow: str, times: Mapping[str, int]) -> Graph:
    graph = load_graph(FOLDER / f"{shallow}.json.gz")
    return msgspec.structs.replace(deepened(graph, times), name=f"{name}, from {graph.name}")
