"""Whatever is passed and returned: nested, named, integer, boolean, None, tied, frozen, unused."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tests.semantics.pairs import Wide, batches, gradients, same, steps


@dataclasses.dataclass
class Batch:
    """What a data loader might give."""

    x: torch.Tensor
    scale: float
    mask: torch.Tensor | None = None


@dataclasses.dataclass
class Result:
    """What a model might return."""

    loss: torch.Tensor
    parts: dict[str, torch.Tensor]
    nothing: None = None
    name: str = "result"


class Pair(NamedTuple):
    """Two tensors with names."""

    left: torch.Tensor
    right: torch.Tensor | None


class Nested(nn.Module):
    """Takes and returns structures."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Wide(nn.Identity())

    def forward(
        self, batch: Batch, /, pair: Pair, *rest: torch.Tensor, flags: dict[str, Any], index: list[torch.Tensor]
    ) -> Result:
        x = batch.x * batch.scale
        if batch.mask is not None:
            x = x.masked_fill(batch.mask, 0.0)
        if flags["double"]:
            x = x * 2
        x = x + pair.left + (0 if pair.right is None else pair.right) + sum(rest)
        x = x[index[0]] + F.one_hot(index[1], 8)
        loss = self.inner(x)
        return Result(loss, {"count": batch.mask.sum(), "chosen": x.argmax(-1), "positive": x > 0})


class Kinds(nn.Module):
    """Returns one of several kinds of structures."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Wide(nn.Identity())

    def forward(self, x: torch.Tensor, kind: str) -> Any:
        from transformers.modeling_outputs import SequenceClassifierOutput

        loss = self.inner(x)
        h = torch.tanh(self.inner.first(x))
        if kind == "model output":
            return SequenceClassifierOutput(loss=loss, logits=h, hidden_states=(h, h * 2), attentions=None)
        if kind == "named":
            return Pair(loss, None), 3, "text"
        if kind == "ordered":
            return OrderedDict(loss=loss, logits=[h, (h.sum(), None)])
        return [loss, {"h": {"deep": (h,)}}, None, 2.5, True]


class Partly(nn.Module):
    """Tied, frozen and unused parameters; an embedding of integers; a mask of booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 32, padding_idx=0, sparse=False)
        self.frozen = nn.Linear(32, 32).requires_grad_(False)
        self.adapter = nn.Linear(32, 32)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(32, 40, bias=False)
        self.head.weight = self.embedding.weight
        self.twin = self.adapter

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.embedding(tokens)
        for _ in range(2):
            h = h + F.gelu(self.frozen(h)) * 0.5 + F.gelu(self.twin(self.adapter(h)))
        h = torch.where(mask.unsqueeze(-1), h, 0.0)
        return F.cross_entropy(self.head(h).flatten(0, 1), tokens.flatten())


def test_nested_arguments_and_results() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for x in batches():
            out = module(
                Batch(x, 1.5, x > 1), Pair(x * 0.1, None), x * 0.2, x.flip(0), flags={"double": True, "name": "n"},
                index=[torch.arange(256).flip(0), torch.arange(256) % 8],
            )  # fmt: skip
            assert type(out) is Result
            assert out.name == "result"
            out.loss.backward()
            seen += [out.loss.detach().clone(), {k: v.clone() for k, v in out.parts.items()}, gradients(module)]
            module.zero_grad()
        return seen

    same(Nested, scenario, spare=0.2)


def test_kinds_of_results() -> None:
    from transformers.modeling_outputs import SequenceClassifierOutput

    kinds = {"model output": SequenceClassifierOutput, "named": tuple, "ordered": OrderedDict, "list": list}

    def scenario(module: nn.Module) -> list[Any]:
        seen: list[Any] = []
        for kind, expected in kinds.items():
            out = module(batches(1)[0], kind)
            assert type(out) is expected
            loss = out[0].left if kind == "named" else out["loss"] if kind == "ordered" else out[0]
            loss.backward()
            seen += [kind, gradients(module), torch.utils._pytree.tree_map_only(torch.Tensor, torch.detach, out)]
            module.zero_grad()
        return seen

    same(Kinds, scenario, spare=1.5, recomputes=False)


def test_tied_frozen_and_unused_parameters() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        g = torch.Generator().manual_seed(2)
        tokens = torch.randint(0, 40, (8, 32), generator=g)
        found = steps(3, lambda m, _: m(tokens, tokens > 3))(module)
        assert module.frozen.weight.grad is None
        assert module.unused.weight.grad is None
        assert module.head.weight is module.embedding.weight
        return found

    same(Partly, scenario)


def test_a_model_without_parameters_that_train() -> None:
    def scenario(module: nn.Module) -> list[Any]:
        x = batches(1)[0].requires_grad_()
        module(x).backward()
        return [x.grad]

    same(lambda: Wide(nn.Identity()).requires_grad_(False), scenario)
