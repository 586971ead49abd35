"""A result that shares its memory with others and gets a gradient of its own.

AOTAutograd takes views that a graph returns again, outside of it, so that what flows back to them is added up there.
An operator in front of them that seems to copy leaves them in the graph, each with its own gradient, as in eager; what
is run shares the memory all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

_LIBRARY = torch.library.Library("lowtide", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define("handed_out(Tensor given) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("handed_out", torch.clone, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

HANDED_OUT = torch.ops.lowtide.handed_out.default
"""Stands for the tensor itself, and seems to be a copy of it."""


def _passed_on(_: Any, gradient: torch.Tensor) -> torch.Tensor:
    return gradient


torch.library.register_autograd("lowtide::handed_out", _passed_on, lib=_LIBRARY)


def as_views(results: Sequence[Any], which: Iterable[int]) -> list[Any]:
    """Makes views of results that share their memory, of which autograd refuses in words that they be overwritten.

    It would not see that the others change with them.
    """
    found = list(results)
    for index in which:
        found[index] = found[index].view_as(found[index])
    return found
