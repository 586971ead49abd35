"""Batches for the networks of the zoo, all from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Batches = Callable[[int], list[Any]]


def _drawn(draw: Callable[[torch.Generator], Any]) -> Batches:
    def make(count: int) -> list[Any]:
        generator = torch.Generator().manual_seed(1)
        return [draw(generator) for _ in range(count)]

    return make


def tokens(batch: int = 2, length: int = 16, vocabulary: int = 97, masked: int | None = None) -> Batches:
    """Token ids that are their own labels.

    Arguments:
        masked: how many tokens at the end of the last sequence are padding, with an attention mask; None: no mask.
    """

    def draw(g: torch.Generator) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, vocabulary, (batch, length), generator=g)
        if masked is None:
            return {"input_ids": ids, "labels": ids}
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[-1, length - masked :] = 0
        return {"input_ids": ids, "attention_mask": mask, "labels": ids}

    return _drawn(draw)


def pixels(batch: int = 2, size: int = 32, classes: int = 7) -> Batches:
    """Images and one label each, by the names that transformers gives them."""

    def draw(g: torch.Generator) -> dict[str, torch.Tensor]:
        return {
            "pixel_values": torch.randn(batch, 3, size, size, generator=g),
            "labels": torch.randint(0, classes, (batch,), generator=g),
        }

    return _drawn(draw)


def images(batch: int = 2, size: int = 32, classes: int = 7, dense: bool = False) -> Batches:
    """Images with one label each, or one per pixel."""

    def draw(g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        target = (batch, size, size) if dense else (batch,)
        return torch.randn(batch, 3, size, size, generator=g), torch.randint(0, classes, target, generator=g)

    return _drawn(draw)


def sequences(batch: int = 4, length: int = 12, vocabulary: int = 50) -> Batches:
    """Bare token ids."""
    return _drawn(lambda g: torch.randint(0, vocabulary, (batch, length), generator=g))


def vectors(batch: int = 32, width: int = 16, classes: int = 5) -> Batches:
    """Vectors with one label each."""
    return _drawn(lambda g: (torch.randn(batch, width, generator=g), torch.randint(0, classes, (batch,), generator=g)))


def sounds(batch: int = 2, length: int = 800, letters: int = 12) -> Batches:
    """Waves with the letters that are spoken."""

    def draw(g: torch.Generator) -> dict[str, torch.Tensor]:
        return {
            "input_values": torch.randn(batch, length, generator=g),
            "labels": torch.randint(1, letters, (batch, 5), generator=g),
        }

    return _drawn(draw)


def scenes(batch: int = 2, size: int = 64, classes: int = 4) -> Batches:
    """Images with boxes and their labels, as torchvision's detectors take them."""

    def draw(g: torch.Generator) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
        corners = torch.rand(batch, 2, 2, generator=g) * size / 2
        boxes = torch.cat([corners, corners + size / 3], dim=2)
        labels = torch.randint(1, classes, (batch, 2), generator=g)
        pictures = list(torch.rand(batch, 3, size, size, generator=g))
        return pictures, [{"boxes": b, "labels": t} for b, t in zip(boxes, labels, strict=True)]

    return _drawn(draw)


def films(batch: int = 2, frames: int = 4, size: int = 16, classes: int = 7) -> Batches:
    """Short films with one label each."""
    return _drawn(
        lambda g: (
            torch.randn(batch, 3, frames, size, size, generator=g),
            torch.randint(0, classes, (batch,), generator=g),
        )
    )
