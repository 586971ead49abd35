"""Text that every machine with Python has: the standard library's own sources, one token per byte."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

from lowtide.errors import LowtideError

VOCABULARY = 256


def read_sources(most_B: int = 4 * 2**20) -> torch.Tensor:
    """The standard library's modules, sorted by name and joined.

    Arguments:
        most_B: stop after that many bytes.

    Returns: uint8 of shape (bytes,).

    Raises:
        LowtideError: if this Python came without its sources.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= most_B:
            break
    if len(text) < 2**16:
        raise LowtideError(f"{folder} holds only {len(text)} bytes of Python; install Python with its standard library")
    return torch.frombuffer(text[:most_B], dtype=torch.uint8)


class Batches:
    """Windows on a text, the same ones for the same seed and step, whatever else uses random numbers."""

    def __init__(self, text: torch.Tensor, *, batch: int, length: int, seed: int) -> None:
        self._text, self._batch, self._length, self._seed = text, batch, length, seed

    def __getitem__(self, step: int) -> torch.Tensor:
        """The batch of a step: int64 of shape (batch, length)."""
        draw = torch.Generator().manual_seed(self._seed * 1_000_003 + step)
        starts = torch.randint(len(self._text) - self._length, (self._batch,), generator=draw)
        return torch.stack([self._text[s : s + self._length] for s in starts.tolist()]).long()
