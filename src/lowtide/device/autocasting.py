"""The state of autocast on this thread, to be restored elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Autocasting:
    """Whether operators cast what they are given.

    Arguments:
        kinds: per kind of device, whether autocast is on, and to what.
        caches: whether it keeps what it has cast.
    """

    kinds: tuple[tuple[str, bool, torch.dtype], ...]
    caches: bool

    @classmethod
    def now(cls) -> Autocasting:
        """That of this thread."""
        return cls(
            tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES),
            torch.is_autocast_cache_enabled(),
        )

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Inside, it is as it was."""
        with contextlib.ExitStack() as stack:
            for device, enabled, dtype in self.kinds:
                if enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype, enabled, self.caches))
            yield
