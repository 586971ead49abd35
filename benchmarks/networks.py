"""The networks of the tables, at sizes where activations dominate, with random weights and inputs from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.networks import UNet, WithLoss
from torch import nn


@dataclass(frozen=True)
class Subject:
    """A network to measure.

    Arguments:
        make: the module, its loss inside, in training mode.
        batch: what it is called with, by keyword.
        blocks: names of the modules that `torch.utils.checkpoint` would wrap.
    """

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], dict[str, Any]]
    blocks: Callable[[nn.Module], list[nn.Module]]

    def build(self) -> nn.Module:
        """The module from a fixed seed."""
        torch.manual_seed(0)
        return self.make().train()


def _gpt2(dropout: float) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4, n_embd=256, n_head=8, vocab_size=256, n_positions=256, use_cache=False, bos_token_id=0, eos_token_id=0,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return model


def _resnet50() -> nn.Module:
    import timm

    return WithLoss(timm.create_model("resnet50", num_classes=100))


def _vgg16() -> nn.Module:
    """Its first fully connected layer is 128 wide, not 4096: a hundred million parameters would hide the activations."""
    import timm

    return WithLoss(timm.create_model("vgg16", num_classes=100, mlp_ratio=1 / 32))


def _densenet121() -> nn.Module:
    import timm

    return WithLoss(timm.create_model("densenet121", num_classes=100))


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024, vocab_size=512,
        max_position_embeddings=256,
    )  # fmt: skip
    return BertForMaskedLM(config)


def _tokens(vocabulary: int, count: int, length: int) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        tokens = torch.randint(0, vocabulary, (count, length), generator=torch.Generator().manual_seed(1))
        return {"input_ids": tokens, "labels": tokens}

    return make


def _images(count: int, size: int, classes: int, dense: bool) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        g = torch.Generator().manual_seed(1)
        shape = (count, size, size) if dense else (count,)
        return {"x": torch.randn(count, 3, size, size, generator=g), "y": torch.randint(0, classes, shape, generator=g)}

    return make


def _resnet_blocks(model: nn.Module) -> list[nn.Module]:
    return [b for stage in (model.body.layer1, model.body.layer2, model.body.layer3, model.body.layer4) for b in stage]


SUBJECTS = {
    s.name: s
    for s in (
        Subject("gpt2", lambda: _gpt2(0.1), _tokens(256, 6, 256), lambda m: list(m.transformer.h)),
        Subject("resnet50", _resnet50, _images(8, 112, 100, dense=False), _resnet_blocks),
        Subject(
            "unet",
            lambda: WithLoss(UNet(width=16, depth=3)),
            _images(8, 128, 3, dense=True),
            lambda m: [*m.body.down, *m.body.join],
        ),
    )
}
FURTHER = {
    s.name: s
    for s in (
        Subject("vgg16", _vgg16, _images(4, 128, 100, dense=False), lambda m: [m.body.features]),
        Subject("bert", _bert, _tokens(512, 8, 128), lambda m: list(m.bert.encoder.layer)),
        Subject(
            "densenet121",
            _densenet121,
            _images(8, 64, 100, dense=False),
            lambda m: [b for n, b in m.body.features.named_children() if n.startswith("denseblock")],
        ),
    )
}
"""Of the tables of hard budgets only."""
WITHOUT_DROPOUT = {"gpt2": Subject("gpt2", lambda: _gpt2(0.0), _tokens(256, 6, 256), SUBJECTS["gpt2"].blocks)}


def loss_in(outputs: Any) -> torch.Tensor:
    """The loss in what a subject returned."""
    return outputs if isinstance(outputs, torch.Tensor) else outputs.loss
