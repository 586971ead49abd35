"""The needs of torch's L-BFGS, whose step wants a closure and whose state grows with its history.

Everything that it holds is either as large as all parameters together or a scalar, and how many there are is linear in
the length of the history. Two short histories over a few numbers tell the line. Units: `_B` bytes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from lowtide.device.observer import observe
from lowtide.profile.recording import isolation
from lowtide.profile.trial import Counted

_SHORT, _LONG = 3, 6  # lengths of history
_ELEMENTS = 4_096  # so many that no sum of scalars is as large
_CLOSURE = "its step runs the closure: forward and backward happen while most of its temporaries live"


class _Full(NamedTuple):
    """What is held with a full history over few elements: vectors and scalars of the state, and temporary bytes."""

    vectors: int
    scalars_B: tuple[int, ...]
    temporaries_B: int


def lbfgs_needs(optimizer: torch.optim.LBFGS) -> Counted:
    """Measures L-BFGS over a few numbers with full histories, and scales.

    Arguments:
        optimizer: is not changed.

    Returns: the needs with a full history.
    """
    group = optimizer.param_groups[0]
    parameters: list[torch.Tensor] = group["params"]
    history: int = group["history_size"]
    dtype = max((p.dtype.to_real() for p in parameters), key=lambda dtype: dtype.itemsize)
    vector_B = sum(p.numel() * (2 if p.is_complex() else 1) for p in parameters) * dtype.itemsize
    with isolation():
        short, long = (_full(n, group["line_search_fn"], dtype, parameters[0].device) for n in (_SHORT, _LONG))

    def at(short: int, long: int) -> int:
        return short + (long - short) * (history - _SHORT) // (_LONG - _SHORT)

    scalar_B = max(short.scalars_B, default=0)
    sizes_B = (vector_B,) * at(short.vectors, long.vectors)
    sizes_B += (scalar_B,) * at(len(short.scalars_B), len(long.scalars_B))
    vectors, rest_B = divmod(max(short.temporaries_B, long.temporaries_B), _ELEMENTS * dtype.itemsize)
    return Counted(sizes_B, vectors * vector_B + rest_B, _CLOSURE)


def _full(history: int, line_search: str | None, dtype: torch.dtype, device: torch.device) -> _Full:
    """Minimises the sum of -log(x): no step reaches an optimum, and every one is worth remembering."""
    x = torch.nn.Parameter(torch.ones(_ELEMENTS, dtype=dtype, device=device))
    x.grad = torch.empty_like(x)
    options: dict[str, Any] = {"line_search_fn": line_search, "tolerance_grad": 0.0, "tolerance_change": 0.0}
    optimizer = torch.optim.LBFGS([x], max_iter=history + 2, history_size=history, **options)

    def closure() -> float:
        with torch.no_grad():
            torch.reciprocal(x, out=x.grad).neg_()
            return -_ELEMENTS * math.log(x[0].item())

    with observe(device.type) as seen:
        optimizer.step(closure)  # type: ignore[no-untyped-call]
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    live: dict[int, int] = {}
    for event in seen.events:
        if event.size_B > 0:
            live[event.address] = event.size_B
        else:
            live.pop(event.address, None)
    vector_B = _ELEMENTS * dtype.itemsize
    scalars_B = tuple(size_B for size_B in live.values() if size_B < vector_B)
    return _Full(len(live) - len(scalars_B), scalars_B, seen.peak_B - seen.end_B)
