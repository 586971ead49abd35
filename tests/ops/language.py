"""Small pieces of language models, just large enough that the families look at them: a vocabulary, and attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 261


class TiedTable(nn.Module):
    """One weight for embeddings and for products with them, and no loss; one row is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1031, 256, padding_idx=5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        return torch.tanh(hidden * 2.0) @ self.embed.weight.t()


def tokens(dtype: torch.dtype) -> tuple[torch.Tensor]:  # noqa: ARG001  # integers in any
    """Some tokens of 1031, several times, padding among them."""
    drawn = torch.randint(40, (3, 70), generator=torch.Generator().manual_seed(3))
    return (torch.where(drawn > 20, drawn * 25, drawn),)


class Vocabulary(nn.Module):
    """Embeddings, a linear layer, and the cross-entropy of what it says; ignored targets among the others.

    Arguments:
        tied: whether both have one weight.
        turned: whether the weight is [H, V].
        returned: whether logits are returned, too.
        wide: whether the loss is taken of logits in float32.
        shifted: whether the last logits of every text are left out.
        autocast: whether it runs in autocast.
        loss: keyword arguments of the loss.
    """

    def __init__(
        self,
        *,
        bias: bool = True,
        tied: bool = False,
        turned: bool = False,
        frozen: bool = False,
        returned: bool = False,
        wide: bool = False,
        shifted: bool = False,
        autocast: bool = False,
        **loss: Any,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 16)
        self.head = nn.Linear(16, CLASSES, bias=bias)
        if tied:
            self.head.weight = self.embed.weight
        if frozen:
            self.head.requires_grad_(False)
        self.matrix = nn.Parameter(torch.randn(16, CLASSES)) if turned else None
        self.weight: torch.Tensor | None
        self.register_buffer("weight", loss.pop("weight", None))
        self.returned, self.wide, self.shifted, self.autocast, self.loss = returned, wide, shifted, autocast, loss

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            hidden = self.embed(tokens) * 2.0
            logits = self.head(hidden) if self.matrix is None else hidden @ self.matrix
            kept = logits.float() if self.wide else logits
            if self.shifted:
                kept, targets = kept[:, :-1].contiguous(), targets[:, 1:].contiguous()
            loss = F.cross_entropy(kept.view(-1, CLASSES), targets.view(-1), weight=self.weight, **self.loss)
        return (loss, logits) if self.returned else loss


def vocabulary(**options: Any) -> Callable[[], nn.Module]:
    """A factory of `Vocabulary`."""
    return lambda: Vocabulary(**options)


def texts(ignored: int = -100, whole: bool = False, rows: int = 8) -> Callable[[torch.dtype], tuple[Any, ...]]:
    """Tokens and targets; every fifth target is ignored, and all of the first half if `whole`."""

    def make(dtype: torch.dtype) -> tuple[Any, ...]:  # noqa: ARG001  # integers in any
        generator = torch.Generator().manual_seed(2)
        tokens, targets = torch.randint(CLASSES, (2, rows, 128), generator=generator)
        targets.view(-1)[::5] = ignored
        if whole:
            targets[: max(rows // 2, 1)] = ignored
        return tokens, targets

    return make


class OpenAttention(nn.Module):
    """Attention as eager code spells it.

    Arguments:
        scale: by which scores are multiplied, or divided if it is above 1.
        mask: "causal", "padding" (one mask per batch) or "".
        wide: whether the softmax is taken in float32.
        sdpa: whether torch's own function spells it.
    """

    def __init__(
        self, dropout: float = 0.0, scale: float = 0.35, mask: str = "", wide: bool = False, sdpa: bool = False
    ) -> None:
        super().__init__()
        self.project = nn.Linear(16, 96)
        self.dropout, self.scale, self.mask, self.wide, self.sdpa = dropout, scale, mask, wide, sdpa

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        split = (t.view(batch, length, 4, 8).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        query, key, value = split
        if self.sdpa:
            causal = self.mask == "causal"
            return F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout, is_causal=causal)
        scores = query @ key.transpose(2, 3)
        scores = scores / self.scale if self.scale > 1 else scores * self.scale
        if self.mask == "causal":
            scores = scores + torch.full((length, length), float("-inf"), device=x.device).triu(1)
        elif self.mask == "padding":
            padded = x.detach()[:, None, None, :, 0] > 1
            scores = scores + torch.zeros_like(padded, dtype=x.dtype).masked_fill(padded, -1e9)
        weights = F.softmax(scores, -1, dtype=torch.float32).to(x.dtype) if self.wide else F.softmax(scores, -1)
        values: torch.Tensor = F.dropout(weights, self.dropout) @ value
        return values


def open_attention(**options: Any) -> Callable[[], nn.Module]:
    """A factory of `OpenAttention`."""
    return lambda: OpenAttention(**options)
