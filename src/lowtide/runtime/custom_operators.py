"""Operators that others define: what they return is compared with what their fake kernels said."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from lowtide.device.calls import pick
from lowtide.errors import UnsupportedOperator
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, Recipe

_OURS = frozenset({"aten", "prims", "prim", "lowtide", "higher_order", "torch"})  # torch's own, and those made here
Expected = tuple[tuple[tuple[int, ...], Geometry], ...]


def expected_of(graph: Graph, recipe: Recipe) -> Expected:
    """What a custom operator has to return, by the path to it; empty for other operators."""
    if recipe.op.partition(".")[0] in _OURS:
        return ()
    found = ((path, graph.values[v].geometry) for v, path in zip(recipe.outputs, recipe.paths, strict=False))
    return tuple((path, geometry) for path, geometry in found if geometry is not None)


def checked(op: str, call: Callable[..., Any], expected: Expected) -> Callable[..., Any]:
    """A custom operator that raises where its results are not what everything behind it was captured for.

    Arguments:
        op: its name.
        call: the operator itself.
        expected: see `expected_of`.
    """

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        for path, geometry in expected:
            found = pick(result, path)
            if isinstance(found, torch.Tensor) and _said(found.shape, found.dtype) != _expected(geometry):
                raise UnsupportedOperator(
                    f"the operator {op} returned a tensor {_said(found.shape, found.dtype)}, and its fake kernel had "
                    f"said {_expected(geometry)}, for which everything behind it was captured: mend the function "
                    "that is given to its register_fake (torch.library.opcheck shows such faults)."
                )
        return result

    return run


def _expected(geometry: Geometry) -> str:
    return _said(geometry.shape, geometry.dtype)


def _said(shape: Any, dtype: Any) -> str:
    return f"of shape {list(shape)} and dtype {str(dtype).removeprefix('torch.')}"
