"""Networks that no policy was tuned to: their recorded steps show how the policies do on what they have not met.

`python -m benchmarks.eager.unseen [NAME ...]` records one step of each into `problems/traces/unseen/`. Those of `STUDIED`
were looked at while the policies were written; the others were not, and are reported apart.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as F
from tests.eager_engine.adversaries import Adversaries
from tests.eager_engine.networks import (
    EagerNetwork,
    adam,
    adamw,
    compete,
    descend,
    duel,
    noise,
    pairs,
    sentences,
    sgd,
    trees,
)
from tests.eager_engine.trees import TreeReader
from tests.networks import UNet, WithLoss
from torch import nn

from benchmarks.eager.running import prepare, record
from benchmarks.problem_set import TRACES

FOLDER = TRACES / "unseen"


class _Inception(nn.Module):
    """Four branches of different depth, concatenated."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()

        def block(*shape: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for (before, kernel), (after, _) in zip(
                [(channels, shape[0])] + [(width, k) for k in shape[1:]], [(width, 0)] * len(shape), strict=True
            ):
                layers += [nn.Conv2d(before, after, kernel, padding=kernel // 2), nn.BatchNorm2d(after), nn.ReLU()]
            return nn.Sequential(*layers)

        self.branches = nn.ModuleList([block(1), block(1, 3), block(1, 3, 3), block(1, 5)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _inception(width: int, blocks: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 4 * width, 3, padding=1), nn.ReLU()]
    for number in range(blocks):
        layers.append(_Inception(4 * width, width))
        if number % 2:
            layers.append(nn.MaxPool2d(2))
    return WithLoss(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10)))


class _Recurrent(nn.Module):
    """A cell, unrolled in Python; the class of a sequence from its last state."""

    def __init__(self, cell: nn.RNNCellBase, vocabulary: int, width: int, hidden: int, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.cell = cell
        self.hidden = hidden
        self.head = nn.Linear(hidden, classes)

    def forward(self, words: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        h = x.new_zeros(len(words), self.hidden)
        for t in range(words.shape[1]):
            h = self.cell(x[:, t], h)
        return F.cross_entropy(self.head(h), y)


class _GatedReader(nn.Module):
    """torch's own GRU."""

    def __init__(self, vocabulary: int, width: int, hidden: int, layers: int, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.gru = nn.GRU(width, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, words: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(self.embedding(words))
        return F.cross_entropy(self.head(states[:, -1]), y)


class _Video(nn.Module):
    """Convolutions over each frame, and an LSTM over the frames."""

    def __init__(self, width: int, hidden: int, classes: int = 5) -> None:
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        )  # fmt: skip
        self.cell = nn.LSTMCell(32 * width, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(self.frames(x[:, t]), state)
        assert state is not None
        return F.cross_entropy(self.head(state[0]), y)


class _VisionTransformer(nn.Module):
    def __init__(self, width: int, layers: int, patch: int, tokens: int, classes: int = 10) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(torch.zeros(1, tokens, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, activation="gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            h = layer(h)
        out: torch.Tensor = self.head(h.mean(1))
        return out


class _Routed(nn.Module):
    """Layers whose experts get the tokens that a router sends them: as many as there happen to be."""

    def __init__(self, width: int, layers: int, experts: int, classes: int = 10) -> None:
        super().__init__()
        self.routers = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.experts = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
                for _ in range(experts)
            )
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x
        for router, experts, norm in zip(self.routers, self.experts, self.norms, strict=True):
            flat = norm(h)
            share, chosen = router(flat).softmax(-1).topk(2, dim=-1)
            mixed = torch.zeros_like(flat)
            for number, expert in enumerate(experts):  # type: ignore[arg-type]
                rows, places = (chosen == number).nonzero(as_tuple=True)
                mixed = mixed.index_add(0, rows, expert(flat[rows]) * share[rows, places].unsqueeze(1))
            h = h + mixed
        return F.cross_entropy(self.head(h), y)


class _Dense(nn.Module):
    """Every layer reads what all before it made."""

    def __init__(self, growth: int, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(3 + i * growth), nn.ReLU(), nn.Conv2d(3 + i * growth, growth, 3, padding=1, bias=False)
            )
            for i in range(layers)
        )
        self.head = nn.Linear(3 + layers * growth, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out


class _Waves(nn.Module):
    """Gated convolutions over time with growing holes, residual and skipped."""

    def __init__(self, width: int, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, dilation=2 ** (i % 5), padding=2 ** (i % 5)) for i in range(layers)
        )
        self.mixes = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.enter(x)
        skipped = torch.zeros_like(h)
        for layer, mix in zip(self.layers, self.mixes, strict=True):
            gate, value = layer(h).chunk(2, 1)
            kept, skip = mix(torch.sigmoid(gate) * torch.tanh(value)).chunk(2, 1)
            h = h + kept
            skipped = skipped + skip
        out: torch.Tensor = self.head(F.relu(skipped).mean(2))
        return out


class _Translator(nn.Module):
    """An encoder and a decoder that looks at all of it in every layer."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.transformer = nn.Transformer(width, 4, layers, layers, 4 * width, 0.1, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, words: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        read, said = words.chunk(2, 1)
        made = self.head(self.transformer(self.embedding(read), self.embedding(said)))
        return F.cross_entropy(made.flatten(0, 1), said.flatten())


class _Messages(nn.Module):
    """Messages along the edges of a random graph, with a penalty on the gradient: differentiated twice."""

    def __init__(self, width: int, rounds: int, classes: int = 4) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.GRUCell(width, width)
        self.rounds = rounds
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        generator = torch.Generator().manual_seed(len(x))
        start, end = torch.randint(0, len(x), (2, 4 * len(x)), generator=generator)
        h = x
        for _ in range(self.rounds):
            sent = torch.tanh(self.message(torch.cat([h[start], h[end]], 1)))
            h = self.update(torch.zeros_like(h).index_add(0, end, sent), h)
        loss = F.cross_entropy(self.head(h), y)
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + 0.1 * gradient.square().sum()


def _frames(generator: torch.Generator, _: int) -> object:
    return torch.randn(8, 10, 3, 24, 24, generator=generator), torch.randint(0, 5, (8,), generator=generator)


STUDIED = {
    n.name: n
    for n in (
        EagerNetwork("gan-5", lambda: Adversaries(32, 96, unrolled=5), duel, noise((256, 32)), compete),
        EagerNetwork("inception", lambda: _inception(16, 6), sgd, pairs((8, 3, 32, 32), (8,), 10), descend),
        EagerNetwork("trees-33", lambda: TreeReader(64, 96, 4), adam, trees(96, 64, 30, 4), descend),
        EagerNetwork(
            "gru-30", lambda: _Recurrent(nn.GRUCell(32, 128), 200, 32, 128), adam, sentences(200, 64, (30,), 4), descend
        ),
        EagerNetwork(
            "lengths-rnn", lambda: _Recurrent(nn.RNNCell(32, 96), 200, 32, 96),
            adam, sentences(200, 128, (40, 25, 60, 33), 4), descend,
        ),
        EagerNetwork("moe", lambda: _Routed(64, 4, 4), adamw, pairs((256, 64), (256,), 10), descend),
        EagerNetwork("dense", lambda: WithLoss(_Dense(12, 14)), sgd, pairs((6, 3, 24, 24), (6,), 10), descend),
        EagerNetwork("gru-layers", lambda: _GatedReader(200, 48, 96, 2), adam, sentences(200, 48, (30,), 4), descend),
        EagerNetwork("messages", lambda: _Messages(48, 6), adam, pairs((256, 48), (256,), 4), descend),
    )
}  # fmt: skip
"""Looked at while the policies were written."""
HELD_BACK = {
    n.name: n
    for n in (
        EagerNetwork("gan-8", lambda: Adversaries(48, 64, unrolled=8), duel, noise((384, 48)), compete),
        EagerNetwork("gan-3", lambda: Adversaries(96, 48, unrolled=3), duel, noise((512, 96)), compete),
        EagerNetwork("inception-4", lambda: _inception(24, 4), adam, pairs((4, 3, 40, 40), (4,), 10), descend),
        EagerNetwork("trees-21", lambda: TreeReader(48, 128, 4), adam, trees(128, 48, 18, 4), descend),
        EagerNetwork(
            "rnn-40", lambda: _Recurrent(nn.RNNCell(48, 160), 200, 48, 160), adam, sentences(200, 48, (40,), 4), descend
        ),
        EagerNetwork("messages-9", lambda: _Messages(32, 9), adam, pairs((320, 32), (320,), 4), descend),
        EagerNetwork("dense-20", lambda: WithLoss(_Dense(8, 20)), sgd, pairs((8, 3, 20, 20), (8,), 10), descend),
        EagerNetwork("waves-24", lambda: WithLoss(_Waves(16, 24)), adam, pairs((4, 1, 384), (4,), 10), descend),
        EagerNetwork("inception-9", lambda: _inception(12, 9), sgd, pairs((6, 3, 40, 40), (6,), 10), descend),
        EagerNetwork("trees-40", lambda: TreeReader(96, 64, 4), adam, trees(64, 96, 37, 4), descend),
        EagerNetwork("video", lambda: _Video(8, 64), adam, _frames, descend),
        EagerNetwork(
            "vit", lambda: WithLoss(_VisionTransformer(96, 5, 4, 64)), adamw, pairs((8, 3, 32, 32), (8,), 10), descend
        ),
        EagerNetwork(
            "unet-4", lambda: WithLoss(UNet(width=8, depth=4)), adam, pairs((3, 3, 64, 64), (3, 64, 64), 3), descend
        ),
        EagerNetwork("moe-6", lambda: _Routed(48, 6, 6), adamw, pairs((320, 48), (320,), 10), descend),
        EagerNetwork("waves", lambda: WithLoss(_Waves(24, 15)), adam, pairs((6, 1, 256), (6,), 10), descend),
        EagerNetwork("translator", lambda: _Translator(200, 64, 3), adamw, sentences(200, 8, (64,), 4), descend),
        EagerNetwork(
            "gru-lengths", lambda: _GatedReader(200, 32, 128, 1), adam, sentences(200, 32, (50, 20, 35), 4), descend
        ),
    )
}
"""Not looked at."""
NETWORKS = STUDIED | HELD_BACK


def main(arguments: list[str] | None = None) -> int:
    """Records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="; ".join(NETWORKS))
    prepare()
    FOLDER.mkdir(exist_ok=True)
    for name in parser.parse_args(arguments).names or NETWORKS:
        record(NETWORKS[name], FOLDER / f"{name}.jsonl.gz")
    return 0


if __name__ == "__main__":
    sys.exit(main())
