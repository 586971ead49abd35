"""Networks for training without a graph: what a budget must not change a bit of, small enough for tests.

Each `EagerNetwork` gives a module, its optimizers, batches and one training step, all from seeds, so that two trainings
that begin alike end alike. Sizes are arguments: benchmarks take the same networks larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from tests.eager_engine.adversaries import Adversaries
from tests.eager_engine.sequences import Branches, Lengths, Reader
from tests.eager_engine.trees import TreeReader, random_tree
from tests.networks import ResidualNet, UNet, WithLoss, gpt2

Optimizers = tuple[Optimizer, ...]
Step = Callable[[nn.Module, Optimizers, Any], torch.Tensor]
Batch = Callable[[torch.Generator, int], Any]


@dataclass(frozen=True)
class EagerNetwork:
    """A training from seeds.

    Arguments:
        make: the module.
        optimize: the optimizers of a module.
        batch: from a generator and the batch's number.
        step: zeroes gradients, runs forward and backward, steps the optimizers, and returns the loss, detached.
            Gradients are still there afterwards.
    """

    name: str
    make: Callable[[], nn.Module]
    optimize: Callable[[nn.Module], Optimizers]
    batch: Batch
    step: Step

    def start(self) -> tuple[nn.Module, Optimizers]:
        """A module in training mode with its optimizers; afterwards torch's generator is where a training begins."""
        torch.manual_seed(0)
        module = self.make().train()
        torch.manual_seed(7)
        return module, self.optimize(module)

    def batches(self, count: int) -> Iterator[Any]:
        """The first batches, each made when it is asked for."""
        generator = torch.Generator().manual_seed(1)
        return (self.batch(generator, number) for number in range(count))


class Perceptron(nn.Module):
    """Linear layers with in-place and other activations and dropout, and an in-place addition."""

    def __init__(self, width: int, layers: int, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x * 1.0
        for number, layer in enumerate(self.layers):
            made = layer(h)
            h = F.dropout(F.relu_(made) if number % 2 else F.gelu(made), 0.2)
            h.add_(0.01)
        return F.cross_entropy(self.head(h), y)


def sgd(module: nn.Module) -> Optimizers:
    """One with momentum."""
    return (SGD(module.parameters(), lr=0.02, momentum=0.9),)


def adam(module: nn.Module) -> Optimizers:
    """One with two moments."""
    return (Adam(module.parameters(), lr=1e-3),)


def adamw(module: nn.Module) -> Optimizers:
    """One with decoupled decay."""
    return (AdamW(module.parameters(), lr=1e-3),)


def descend(module: nn.Module, optimizers: Optimizers, batch: Any) -> torch.Tensor:
    """The usual step: a module called with its batch returns its loss."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    outputs = module(**batch) if isinstance(batch, dict) else module(*batch)
    loss: torch.Tensor = outputs if isinstance(outputs, torch.Tensor) else outputs.loss
    del outputs
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss.detach()


def duel(module: nn.Module) -> Optimizers:
    """Those of both adversaries."""
    assert isinstance(module, Adversaries)
    return module.optimizers()


def compete(module: nn.Module, optimizers: Optimizers, batch: Any) -> torch.Tensor:
    """A step of both adversaries."""
    assert isinstance(module, Adversaries)
    return module.train_on(batch, *optimizers)


def pairs(shape: tuple[int, ...], target: tuple[int, ...], classes: int) -> Batch:
    """Normal inputs with random classes."""

    def make(generator: torch.Generator, _: int) -> Any:
        return torch.randn(shape, generator=generator), torch.randint(0, classes, target, generator=generator)

    return make


def tokens(vocabulary: int, count: int, length: int) -> Batch:
    """Words that are their own labels, by keyword."""

    def make(generator: torch.Generator, _: int) -> Any:
        words = torch.randint(0, vocabulary, (count, length), generator=generator)
        return {"input_ids": words, "labels": words}

    return make


def sentences(vocabulary: int, count: int, lengths: tuple[int, ...], classes: int) -> Batch:
    """Words with a class each; the length is another one from batch to batch."""

    def make(generator: torch.Generator, number: int) -> Any:
        shape = (count, lengths[number % len(lengths)])
        words = torch.randint(0, vocabulary, shape, generator=generator)
        return words, torch.randint(0, classes, (count,), generator=generator)

    return make


def trees(count: int, width: int, leaves: int, classes: int) -> Batch:
    """A random tree for each batch, with inputs at its leaves."""

    def make(generator: torch.Generator, number: int) -> Any:
        tree = random_tree(leaves + number % 3, seed=number)
        x = torch.randn(leaves + number % 3, count, width, generator=generator)
        return tree, x, torch.randint(0, classes, (count,), generator=generator)

    return make


def noise(shape: tuple[int, ...]) -> Batch:
    """Real samples, for adversaries."""

    def make(generator: torch.Generator, _: int) -> Any:
        return torch.randn(shape, generator=generator) * 0.5 + 1.0

    return make


def bert(layers: int = 2, width: int = 32, vocabulary: int = 97, positions: int = 32) -> nn.Module:
    """transformers' own BERT with its head for masked words, dropout on."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=4, intermediate_size=4 * width,
        vocab_size=vocabulary, max_position_embeddings=positions,
    )  # fmt: skip
    return BertForMaskedLM(config)


NETWORKS = {
    n.name: n
    for n in (
        EagerNetwork("mlp", lambda: Perceptron(64, 6), adam, pairs((384, 64), (384,), 10), descend),
        EagerNetwork("resnet", lambda: ResidualNet(4), sgd, pairs((4, 3, 16, 16), (4,), 5), descend),
        EagerNetwork("unet", lambda: WithLoss(UNet(width=4)), adam, pairs((6, 3, 16, 16), (6, 16, 16), 3), descend),
        EagerNetwork("gpt2", gpt2, adamw, tokens(97, 6, 24), descend),
        EagerNetwork("bert", bert, adamw, tokens(97, 6, 24), descend),
        EagerNetwork("bilstm", lambda: Reader(60, 16, 24, 2), adam, sentences(60, 16, (12,), 4), descend),
        EagerNetwork("treelstm", lambda: TreeReader(16, 24, 4), adam, trees(48, 16, 7, 4), descend),
        EagerNetwork("branches", lambda: Branches(24), sgd, pairs((128, 24), (128,), 5), descend),
        EagerNetwork("gan", lambda: Adversaries(8, 32, unrolled=3), duel, noise((128, 8)), compete),
        EagerNetwork(
            "lengths", lambda: Lengths(60, 16, 2, 4), adamw, sentences(60, 12, (9, 24, 15, 24, 31), 4), descend
        ),
    )
}
