"""Ways to a tensor's bytes that are no operators: numpy, lists, addresses, pickles, printing.

Torch's dispatcher does not see them, so an evicted tensor would be touched. While a context is open, methods of
`torch.Tensor` that lead past the dispatcher ask for the bytes first. Every thread calls them; only the context's own is
helped, the others meet the storage's guard.

Units: none.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

_LOOKS = ("tolist", "__repr__", "storage", "_typed_storage")
_KEEPS = ("numpy", "data_ptr", "__dlpack__", "share_memory_", "__reduce_ex__")
"""What these hand out is an address, or is read later."""

Reach = Callable[[Tensor, bool], None]


@contextlib.contextmanager
def watched(reach: Reach) -> Iterator[None]:
    """Inside, `reach(tensor, for good)` is called before this thread gets at a tensor's bytes past the dispatcher."""
    owner = threading.get_ident()
    own = vars(Tensor)
    before = {name: own.get(name) for name in (*_LOOKS, *_KEEPS)}
    set_state = torch.set_rng_state
    try:
        for name in before:
            setattr(Tensor, name, _asking(getattr(Tensor, name), reach, owner, name in _KEEPS))
        torch.set_rng_state = torch.random.set_rng_state = _asking(set_state, reach, owner, False)
        yield
    finally:
        torch.set_rng_state = torch.random.set_rng_state = set_state
        for name, method in before.items():
            if method is None:
                delattr(Tensor, name)
            else:
                setattr(Tensor, name, method)


def _asking(method: Callable[..., Any], reach: Reach, owner: int, for_good: bool) -> Callable[..., Any]:
    @functools.wraps(method)
    def asked(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, Tensor) and threading.get_ident() == owner:
            reach(tensor, for_good)
        return method(tensor, *args, **kwargs)

    return asked
