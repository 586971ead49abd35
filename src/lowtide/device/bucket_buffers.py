"""The buckets in which DistributedDataParallel gathers gradients."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


@contextlib.contextmanager
def bucket_buffers_made(inside: Callable[[], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """Has DistributedDataParallel allocate its buckets inside a context of ours: it compares their addresses later."""
    if not torch.distributed.is_available():
        yield
        return
    reducer = torch.distributed.Reducer  # type: ignore[attr-defined]
    places = [(reducer, "_rebuild_buckets"), (DistributedDataParallel, "_ddp_init_helper")]
    found = [(place, name, getattr(place, name)) for place, name in places if hasattr(place, name)]
    try:
        for place, name, method in found:
            setattr(place, name, _inside(inside, method))
        yield
    finally:
        for place, name, method in found:
            setattr(place, name, method)


def _inside(context: Callable[[], contextlib.AbstractContextManager[None]], call: Callable[..., Any]) -> Any:
    """A method that runs inside a context."""

    @functools.wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        with context():
            return call(*args, **kwargs)

    return called
