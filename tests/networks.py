"""Small networks with everything that makes bit-equality hard, and how to train them.

Each `Network` gives a module, a function from (module, batch) to a loss, and batches.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests import torchvision_shim

torchvision_shim.install()

Loss = Callable[[nn.Module, Any], torch.Tensor]


@dataclass(frozen=True)
class Network:
    """A module factory with its outputs (which hold the loss) and batches, all from a seed."""

    name: str
    make: Callable[[], nn.Module]
    outputs: Callable[[nn.Module, Any], Any]
    batches: Callable[[int], list[Any]]

    @staticmethod
    def loss_in(outputs: Any) -> torch.Tensor:
        """The loss in what the module returned."""
        return outputs if isinstance(outputs, torch.Tensor) else outputs.loss

    def loss(self, module: nn.Module, batch: Any) -> torch.Tensor:
        """The loss of a batch; other outputs die at once."""
        return self.loss_in(self.outputs(module, batch))

    def build(self) -> nn.Module:
        """The module, from a fixed seed, in training mode."""
        torch.manual_seed(0)
        return self.make().train()


class Mixed(nn.Module):
    """Batch norm, in-place operators, views of one base, dropout, a mutated buffer, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 32)
        self.norm = nn.BatchNorm1d(32)
        self.second = nn.Linear(32, 32)
        self.frozen = nn.Linear(32, 32)
        self.frozen.requires_grad_(False)
        self.last = nn.Linear(32, 5)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        h = F.relu(self.norm(self.first(x)), inplace=True)
        left, right = h.chunk(2, dim=1)
        h = torch.cat([right * 2, left], dim=1)
        h = F.dropout(torch.tanh(self.second(h)), 0.3)
        h = h + F.dropout(F.gelu(self.frozen(h)), 0.3)
        h.mul_(1.5)
        return F.cross_entropy(self.last(h), y)


class Tied(nn.Module):
    """A language model whose output layer is its embedding; masked attention by hand; an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.mix = nn.Linear(16, 48)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 50, bias=False)
        self.out.weight = self.embedding.weight
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = F.dropout(self.embedding(tokens), 0.1)
        q, k, v = self.mix(self.norm(h)).split(16, dim=-1)
        score = (q @ k.transpose(-1, -2)) / 4.0
        mask = torch.ones(score.shape[-2:], dtype=torch.bool).tril()
        attention = F.dropout(score.masked_fill(~mask, float("-inf")).softmax(-1), 0.1)
        h = h + attention @ v
        return F.cross_entropy(self.out(h[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class Block(nn.Module):
    """Two convolutions with batch norm and in-place ReLU."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class UNet(nn.Module):
    """Encoder and decoder with skip connections."""

    def __init__(self, width: int = 8, depth: int = 2, classes: int = 3) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(Block(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in itertools.pairwise(widths))
        self.join = nn.ModuleList(Block(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for up, join, skip in zip(reversed(self.up), reversed(self.join), reversed(skips[:-1]), strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return self.head(x)


class WithLoss(nn.Module):
    """A classifier or segmenter with its loss inside, so that one graph holds the whole step."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(x), y)


class Residual(nn.Module):
    """Two convolutions with batch norm around an in-place ReLU, added to what comes in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.first_norm(self.first(x)), inplace=True)
        return F.relu(x + self.second_norm(self.second(h)))


class ResidualNet(nn.Module):
    """A stem, equal layers, a head, the loss."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.ModuleList(Residual(8) for _ in range(layers))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for layer in self.layers:
            h = layer(h)
        return F.cross_entropy(self.head(h.mean((2, 3))), y)


def gpt2(layers: int = 2, width: int = 32, positions: int = 32, names_loss: bool = True) -> nn.Module:
    """transformers' own GPT-2, dropout on. Unless its loss is named, it logs once which one it takes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=4, vocab_size=97, n_positions=positions, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    if names_loss:
        model.loss_type = "ForCausalLM"
    return model


def resnet() -> nn.Module:
    """timm's smallest ResNet with a loss."""
    import timm

    return WithLoss(timm.create_model("resnet10t", num_classes=7))


def _pairs(shape: tuple[int, ...], target: tuple[int, ...], classes: int) -> Callable[[int], list[Any]]:
    def make(count: int) -> list[Any]:
        g = torch.Generator().manual_seed(1)
        return [(torch.randn(shape, generator=g), torch.randint(0, classes, target, generator=g)) for _ in range(count)]

    return make


def _tokens(vocabulary: int, batch: int, length: int) -> Callable[[int], list[Any]]:
    def make(count: int) -> list[Any]:
        g = torch.Generator().manual_seed(1)
        return [torch.randint(0, vocabulary, (batch, length), generator=g) for _ in range(count)]

    return make


NETWORKS = {
    n.name: n
    for n in (
        Network("mixed", Mixed, lambda m, b: m(*b), _pairs((256, 12), (256,), 5)),
        Network("tied", Tied, lambda m, b: m(b), _tokens(50, 8, 24)),
        Network("unet", lambda: WithLoss(UNet()), lambda m, b: m(*b), _pairs((2, 3, 32, 32), (2, 32, 32), 3)),
        Network("gpt2", gpt2, lambda m, b: m(input_ids=b, labels=b), _tokens(97, 2, 16)),
        Network("resnet", resnet, lambda m, b: m(*b), _pairs((2, 3, 32, 32), (2,), 7)),
    )
}


@dataclass(frozen=True)
class Trace:
    """What a few steps of training left behind."""

    losses: list[torch.Tensor]
    gradients: list[list[torch.Tensor | None]]
    parameters: list[torch.Tensor]
    buffers: list[torch.Tensor]
    generator: torch.Tensor


def train(module: nn.Module, loss_of: Loss, batches: list[Any], autocast: bool = False) -> Trace:
    """Three things per batch: loss, backward, an SGD step with momentum; from a fixed generator state."""
    torch.manual_seed(7)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    losses, gradients = [], []
    for batch in batches:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = loss_of(module, batch)
        loss.backward()
        losses.append(loss.detach().clone())
        gradients.append([None if p.grad is None else p.grad.clone() for p in module.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    return Trace(
        losses,
        gradients,
        [p.detach().clone() for p in module.parameters()],
        [b.detach().clone() for b in module.buffers()],
        torch.get_rng_state(),
    )


def differences(plain: Trace, planned: Trace) -> list[str]:
    """Everything that is not bit-equal, by name; empty when nothing changed."""
    found = []
    for step, (a, b) in enumerate(zip(plain.losses, planned.losses, strict=True)):
        if not torch.equal(a, b):
            found.append(f"loss of step {step}: {a.item()} {b.item()}")
    for step, (left, right) in enumerate(zip(plain.gradients, planned.gradients, strict=True)):
        for index, (p, q) in enumerate(zip(left, right, strict=True)):
            if (p is None) != (q is None) or (p is not None and q is not None and not torch.equal(p, q)):
                found.append(f"gradient {index} of step {step}")
    for kind in ("parameters", "buffers"):
        pairs = zip(getattr(plain, kind), getattr(planned, kind), strict=True)
        found += [f"{kind} {i}" for i, (p, q) in enumerate(pairs) if not torch.equal(p, q)]
    if not torch.equal(plain.generator, planned.generator):
        found.append("generator")
    return found


def twin(module: nn.Module) -> nn.Module:
    """An independent copy with the same content."""
    return copy.deepcopy(module)
