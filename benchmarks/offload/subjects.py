"""The networks whose whole steps are carried out: unmodified, at widths and depths of their own, few images or tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tests import torchvision_shim
from torch import nn

from benchmarks.fidelity import ecosystem_parts

torchvision_shim.install()

Batch = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments and keywords of a step; the last argument is the target where there is a loss function."""


@dataclass(frozen=True)
class Subject:
    """A network that trains.

    Arguments:
        size: what was chosen, for people.
        make: the module; `build` seeds it.
        batch: of a step.
        adamw: whether AdamW trains it; else SGD with momentum.
        inside: whether the model gives the loss itself.
    """

    name: str
    size: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    adamw: bool = False
    inside: bool = False

    def build(self) -> nn.Module:
        """The module from a fixed seed, in training mode."""
        torch.manual_seed(0)
        return self.make().train()

    @property
    def loss_fn(self) -> Callable[..., torch.Tensor] | None:
        """From outputs and target; None where the model gives the loss."""
        return None if self.inside else _loss

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """A fresh one for what trains."""
        trained = [p for p in model.parameters() if p.requires_grad]
        if self.adamw:
            return torch.optim.AdamW(trained, lr=1e-4)
        return torch.optim.SGD(trained, lr=1e-3, momentum=0.9)

    def loss_of(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """One forward as people write it."""
        arguments, keywords = batch
        if self.inside:
            loss: torch.Tensor = model(*arguments, **keywords).loss
            return loss
        return _loss(model(*arguments[:-1], **keywords), arguments[-1])


def _loss(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    """Cross-entropy; of Inception's outputs the main one and 0.4 times the auxiliary one, as torchvision trains it."""
    if isinstance(outputs, torch.Tensor):
        return F.cross_entropy(outputs, target)
    main, auxiliary = outputs
    return F.cross_entropy(main, target) + 0.4 * F.cross_entropy(auxiliary, target)


def _images(count: int, size: int) -> Callable[[], Batch]:
    def make() -> Batch:
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(count, 3, size, size, generator=generator)
        return (images, torch.randint(1000, (count,), generator=generator)), {}

    return make


def _tokens(words: int, count: int, length: int) -> Callable[[], Batch]:
    def make() -> Batch:
        tokens = torch.randint(2, words, (count, length), generator=torch.Generator().manual_seed(1))
        return (), {"input_ids": tokens, "labels": tokens.clone()}

    return make


def _of_torchvision(name: str, count: int, size: int, **options: Any) -> Subject:
    def make() -> nn.Module:
        import torchvision

        found: nn.Module = getattr(torchvision.models, name)(weights=None, **options)
        return found

    return Subject(name, f"{count} x {size} px", make, _images(count, size))


def gpt2(layers: int, width: int, words: int) -> nn.Module:
    """transformers' GPT-2 with its dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=width // 64, vocab_size=words, n_positions=256, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return model


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig())


SUBJECTS = {
    s.name: s
    for s in (
        _of_torchvision("alexnet", 16, 224),
        _of_torchvision("vgg16", 2, 224),
        _of_torchvision("inception_v3", 4, 299, init_weights=False),
        _of_torchvision("resnet50", 4, 224),
        _of_torchvision("resnet101", 4, 224),
        _of_torchvision("resnet152", 4, 224),
        Subject("gpt2", "124 M, 2 x 128 tokens", lambda: gpt2(12, 768, 50257), _tokens(50257, 2, 128), True, True),
        Subject("bert", "110 M, 2 x 128 tokens", _bert, _tokens(30522, 2, 128), True, True),
        Subject(
            "gpt2-lora", "124 M frozen, rank 8, 1 x 128 tokens",
            lambda: ecosystem_parts.with_lora(gpt2(12, 768, 50257)), _tokens(50257, 1, 128), True, True,
        ),
    )
}  # fmt: skip
