"""Modes and subclasses in Python inside a context: they see the program's operators, and nothing of lowtide's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import lowtide
from lowtide.device import shim

pytestmark = pytest.mark.skipif(not shim.available(), reason="no arena here")
WIDTH = 30_000


class Listing(TorchDispatchMode):
    """Writes down what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Boxed(torch.Tensor):
    """A tensor around another one."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Boxed:
        made: Boxed = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


def chain(first: torch.Tensor) -> list[torch.Tensor]:
    """Results of which a quarter fits."""
    results = [first]
    for i in range(12):
        results.append((results[-1] * 1.25).add_(i).sin())
    return results


def test_modes_see_what_they_see_without_a_budget() -> None:
    with Listing() as expected:
        sums = [float(t.sum()) for t in chain(torch.linspace(0, 1, WIDTH))]
    with lowtide.eager("512KiB") as context, Listing() as outer, Listing() as inner:
        found = [float(t.sum()) for t in chain(torch.linspace(0, 1, WIDTH))]
    assert found == sums
    assert inner.seen == outer.seen == expected.seen
    assert context.stats().evictions > 0


def test_what_is_inside_of_a_subclass_is_dropped_and_recomputed() -> None:
    sums = [float(t.sum()) for t in chain(torch.linspace(0, 1, WIDTH))]
    with lowtide.eager("512KiB") as context:
        results = chain(Boxed(torch.linspace(0, 1, WIDTH)))
        assert all(type(t) is Boxed for t in results)
        assert [float(t.inner.sum()) for t in results] == sums  # type: ignore[attr-defined]
        assert context.stats().recomputations > 0
        del results
