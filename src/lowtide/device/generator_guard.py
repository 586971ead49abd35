"""Random generators as they were, whatever happens inside."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def unchanged_generators() -> Iterator[None]:
    """Restores torch's CPU generator, and those of the CUDA devices in use, on the way out."""
    state = torch.get_rng_state()
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())] if in_use else []
    try:
        yield
    finally:
        torch.set_rng_state(state)
        for index, device_state in enumerate(devices):
            torch.cuda.set_rng_state(device_state, index)
