"""The ecosystem's networks at real widths and depths, random weights from a seed, called and trained as their users do.

Batches are small: a step is to take about a second on two cores. Losses of image networks are computed outside the
module, those of transformers' models inside, because their users pass `labels`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tests import torchvision_shim
from torch import nn

from benchmarks.fidelity import ecosystem_parts as parts

torchvision_shim.install()

Batch = dict[str, Any]
Loss = Callable[[Any, Batch], torch.Tensor]
TARGET = "target"
"""Entry of a batch that the loss takes, not the model."""


@dataclass(frozen=True)
class Network:
    """One network of the table.

    Arguments:
        source: the library that it comes from.
        size: what was chosen, for people.
        make: the module; `build` seeds it.
        batch: what it is called with, by keyword; `TARGET` goes to the loss.
        loss: from outputs and batch.
        optimizer: "adamw" or "sgd".
    """

    name: str
    source: str
    size: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Loss
    optimizer: str = "adamw"

    def build(self) -> nn.Module:
        """The module from a fixed seed, in training mode."""
        torch.manual_seed(0)
        return self.make().train()

    def loss_of(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """One forward."""
        return self.loss(model(**{k: v for k, v in batch.items() if k != TARGET}), batch)

    def optimizer_for(self, model: nn.Module) -> torch.optim.Optimizer:
        """A fresh one for what trains."""
        trained = [p for p in model.parameters() if p.requires_grad]
        if self.optimizer == "sgd":
            return torch.optim.SGD(trained, lr=1e-3, momentum=0.9)
        return torch.optim.AdamW(trained, lr=1e-4)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _tokens(vocabulary: int, count: int, length: int, **more: int) -> Batch:
    """Tokens as input and as labels; more inputs of the same kind by name and length."""
    g = _generator()
    tokens = torch.randint(2, vocabulary, (count, length), generator=g)
    others = {n: torch.randint(2, vocabulary, (count, size), generator=g) for n, size in more.items()}
    return {"input_ids": tokens, "labels": tokens.clone()} | others


def _images(
    count: int, size: int, classes: int, *, name: str = "x", labels: str = TARGET, dense: bool = False
) -> Batch:
    g = _generator()
    shape = (count, size, size) if dense else (count,)
    return {
        name: torch.randn(count, 3, size, size, generator=g),
        labels: torch.randint(0, classes, shape, generator=g),
    }


def _inside(outputs: Any, _: Batch) -> torch.Tensor:
    return outputs.loss  # type: ignore[no-any-return]


def _classes(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(outputs, batch[TARGET])


def _next_word(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), batch[TARGET].flatten())


def _with_auxiliary(outputs: Any, batch: Batch, weight: float = 0.3) -> torch.Tensor:
    """GoogLeNet and Inception v3 return a tuple of the logits and one or two auxiliary ones."""
    first, *others = (F.cross_entropy(o, batch[TARGET]) for o in outputs)
    return first + weight * sum(others)


def _of_out(outputs: Any, batch: Batch) -> torch.Tensor:
    """torchvision's segmenters return a dict."""
    return F.cross_entropy(outputs["out"], batch[TARGET])


def _timm(name: str) -> nn.Module:
    import timm

    return timm.create_model(name)  # type: ignore[no-any-return]


def _torchvision(name: str, **options: Any) -> nn.Module:
    from torchvision import models

    return models.get_model(name, weights=None, **options)  # type: ignore[no-any-return]


def _of_timm(name: str, count: int, size: int, optimizer: str = "sgd", classes: int = 1000) -> Network:
    text = f"{count} images of {size} x {size}"
    return Network(
        name, "timm", text, partial(_timm, name), partial(_images, count, size, classes), _classes, optimizer
    )


def _of_torchvision(name: str, count: int, size: int, loss: Loss = _classes, **options: Any) -> Network:
    text = f"{count} images of {size} x {size}"
    dense = loss is _of_out
    batch = partial(_images, count, size, 21 if dense else 1000, dense=dense)
    return Network(name, "torchvision", text, partial(_torchvision, name, **options), batch, loss, "sgd")


def _of_transformers(name: str, size: str, make: Callable[[], nn.Module], batch: Callable[[], Batch], optimizer: str = "adamw") -> Network:  # fmt: skip
    return Network(name, "transformers", size, make, batch, _inside, optimizer)


def _picture(count: int, size: int = 224) -> Callable[[], Batch]:
    return partial(_images, count, size, 1000, name="pixel_values", labels="labels")


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False))


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig())


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_labels=1000)
    )


def _swin() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    return SwinForImageClassification(SwinConfig(num_labels=1000))


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(use_cache=False, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config)


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4,
        max_position_embeddings=1024, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _mamba() -> nn.Module:
    """Its sequential scan: the other one is another program when compiled, and has other bits."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(num_hidden_layers=24, use_cache=False, use_associative_scan=False)
    return MambaForCausalLM(config)


def _mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=512, intermediate_size=512, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
        num_local_experts=8, vocab_size=16000, max_position_embeddings=1024, use_cache=False, output_router_logits=True,
    )  # fmt: skip
    return MixtralForCausalLM(config)


def _distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    return DistilBertForMaskedLM(DistilBertConfig())


def _wav2vec2() -> nn.Module:
    """Without masks in time, which NumPy would draw from a generator of its own."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    return Wav2Vec2ForCTC(Wav2Vec2Config(layerdrop=0.0, mask_time_prob=0.0, ctc_loss_reduction="mean"))


def _sound(count: int, length: int) -> Batch:
    g = _generator()
    return {
        "input_values": torch.randn(count, length, generator=g),
        "labels": torch.randint(1, 32, (count, 12), generator=g),
    }


def _words(count: int, length: int, vocabulary: int) -> Batch:
    g = _generator()
    text = torch.randint(0, vocabulary, (length + 1, count), generator=g)
    return {"tokens": text[:-1].contiguous(), TARGET: text[1:].contiguous()}


def _vectors(count: int, length: int, width: int) -> Batch:
    g = _generator()
    return {
        "x": torch.randn(count, length, width, generator=g),
        TARGET: torch.randn(count, length, width, generator=g),
    }


def _squares(outputs: Any, batch: Batch) -> torch.Tensor:
    """The mixture-of-experts layer returns its balancing loss too."""
    return F.mse_loss(outputs[0], batch[TARGET]) + 0.01 * outputs[1]


NAMED = (
    _of_transformers("gpt2", "124 M parameters, 1 x 320 tokens", _gpt2, partial(_tokens, 50257, 1, 320), "sgd"),
    _of_transformers("bert-base", "110 M, 2 x 128 tokens", _bert, partial(_tokens, 30522, 2, 128), "sgd"),
    _of_transformers("vit-small", "22 M, 4 images of 224 x 224", _vit, _picture(4)),
    _of_transformers("swin-tiny", "28 M, 2 images of 224 x 224", _swin, _picture(2)),
    _of_transformers("t5-small", "61 M, 4 x 64 tokens", _t5, partial(_tokens, 32128, 4, 64), "sgd"),
    _of_transformers("llama", "97 M, 12 layers of 768, 1 x 256 tokens", _llama, partial(_tokens, 32000, 1, 256), "sgd"),
    _of_transformers("mamba-130m", "129 M, 24 layers of 768, 1 x 10 tokens", _mamba, partial(_tokens, 50280, 1, 10), "sgd"),
    _of_transformers("mixtral", "60 M, 6 layers of 512, 8 experts, 4 x 128 tokens", _mixtral, partial(_tokens, 16000, 4, 128), "sgd"),
    _of_timm("resnet50", 4, 176),
    _of_timm("mobilenetv2_100", 8, 160),
    _of_timm("efficientnet_b0", 8, 160),
    _of_timm("convnext_tiny", 2, 192, "adamw"),
    Network(
        "vgg16", "torchvision", "138 M, its two large dense layers frozen, 2 images of 160 x 160", lambda: parts.with_frozen(_torchvision("vgg16", init_weights=False), "classifier.0", "classifier.3"),
        partial(_images, 2, 160, 1000), _classes, "sgd",
    ),
    _of_torchvision("googlenet", 4, 224, _with_auxiliary, init_weights=False),
    _of_torchvision("densenet121", 4, 128),
    _of_torchvision("inception_v3", 2, 299, partial(_with_auxiliary, weight=0.4), init_weights=False),
    _of_torchvision("fcn_resnet50", 2, 128, _of_out, weights_backbone=None),
    Network(
        "lstm-lm", "torch", "2 layers of 650, 20 x 35 words of 10000", partial(parts.LstmLanguageModel, 10000, 650),
        partial(_words, 20, 35, 10000), _next_word, "sgd",
    ),
    Network(
        "unet", "tests", "31 M, width 64, depth 4, 2 images of 128 x 128", partial(parts.unet, 64, 4),
        partial(_images, 2, 128, 3, dense=True), _classes, "sgd",
    ),
    Network(
        "moe-layer", "tests", "16 experts of 512 x 2048, top 2 of 8 x 256 tokens", partial(parts.MixtureOfExperts, 512, 2048, 16),
        partial(_vectors, 8, 256, 512), _squares, "sgd",
    ),
    _of_transformers("gpt2-lora", "124 M frozen, rank 8, 1 x 128 tokens", lambda: parts.with_lora(_gpt2()), partial(_tokens, 50257, 1, 128)),
)  # fmt: skip
FURTHER = (
    _of_transformers("distilbert-base", "66 M, 2 x 128 tokens", _distilbert, partial(_tokens, 30522, 2, 128), "sgd"),
    _of_transformers("wav2vec2-base", "94 M, 2 seconds of sound", _wav2vec2, partial(_sound, 1, 32000), "sgd"),
    _of_timm("regnety_016", 4, 176),
    _of_timm("deit_tiny_patch16_224", 8, 224, "adamw"),
    _of_torchvision("shufflenet_v2_x1_0", 16, 160),
    _of_torchvision("deeplabv3_resnet50", 2, 128, _of_out, weights_backbone=None),
)
"""Two more of each library, chosen after the code was written."""

NETWORKS = {n.name: n for n in (*NAMED, *FURTHER)}
