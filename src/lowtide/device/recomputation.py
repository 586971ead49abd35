"""Forwards that `torch.utils.checkpoint` recomputes in a backward, and ends as soon as it has what it needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint


@contextlib.contextmanager
def ended_behind(check: Callable[[], None]) -> Iterator[None]:
    """Inside, a recomputed forward is not ended early; at exit it is, if it would have been.

    A captured graph hands over all that it saves at its end, before its buffers are updated: ended there,
    it would leave them as they were.

    Arguments:
        check: is called before it is ended.
    """
    saves = hook_of_recomputation()
    if saves is None:
        yield
        return
    saved: list[torch.Tensor] = []

    # Autograd's nodes hold `note` and what it returns, in cycles that no collection sees: neither may hold a node.
    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor if tensor.grad_fn is None else tensor.detach()

    try:
        with torch.autograd.graph.saved_tensors_hooks(note, _same):
            yield
        try:
            for tensor in saved:
                saves(tensor)
        except recomputation_ended():
            check()
            raise
    finally:
        saved.clear()


def _same(tensor: Any) -> Any:
    return tensor


def hook_of_recomputation() -> Callable[[torch.Tensor], object] | None:
    """What is called with every tensor that is saved in a forward that `torch.utils.checkpoint` runs again.

    Returns: that; None where this is no such forward.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    pack: Any = None if hooks is None else hooks[0]
    kind = torch.utils.checkpoint._recomputation_hook
    if getattr(pack, "__module__", "") != kind.__module__ or not pack.__qualname__.startswith(kind.__qualname__):
        return None
    return pack  # type: ignore[no-any-return]


def recomputation_ended() -> type[Exception]:
    """What a forward that `torch.utils.checkpoint` runs again is ended by."""
    return torch.utils.checkpoint._StopRecomputationError
