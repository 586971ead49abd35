"""Random generators as they were, whatever happens inside."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def unchanged_generators() -> Iterator[None]:
    """Restores torch's CPU generator, those of the CUDA devices in use, Python's and numpy's, on the way out."""
    state, python = torch.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = None if numpy is None else numpy.random.get_state()
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())] if in_use else []
    try:
        yield
    finally:
        torch.set_rng_state(state)
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        for index, device_state in enumerate(devices):
            torch.cuda.set_rng_state(device_state, index)
