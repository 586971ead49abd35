"""The operators that a plain step runs, and those of a captured program, to be compared by name and by shape.

Bits may agree by luck of the processor; the same operators on the same shapes are the cause of equal bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lowtide.ir.graph import Graph

Operators = Counter[tuple[str, tuple[tuple[int, ...], ...]]]
# What rounds: products, attention, convolutions, normalisations, sums and scans.
_ROUNDING = (
    *("mm", "addmm", "bmm", "baddbmm", "mv", "dot", "_grouped_mm", "convolution", "convolution_backward"),
    *("sum", "mean", "cumsum", "prod", "logsumexp", "_softmax", "_log_softmax", "var_mean", "norm"),
    *("native_layer_norm", "native_layer_norm_backward", "native_group_norm", "softshrink", "addcdiv", "lerp"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    *("multi_margin_loss", "multi_margin_loss_backward", "_fft_r2c", "_fft_c2r", "_fft_c2c", "unfold_backward"),
    *("index_add", "index_put", "embedding_dense_backward", "nll_loss_forward", "nll_loss_backward"),
)


class _Log(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Operators = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2].rstrip("_")
        if name in _ROUNDING:
            every = results if isinstance(results, tuple | list) else (results,)
            first = next(r for r in every if isinstance(r, torch.Tensor))
            if first.is_floating_point():
                self.seen[name, (tuple(first.shape),)] += 1
        return results


def operators_of_plain(loss: Callable[[], torch.Tensor]) -> Operators:
    """Those operators of a step without lowtide whose results hang on how they round.

    Arguments:
        loss: the forward; its backward runs here.
    """
    with _Log() as log:
        loss().backward()
    return log.seen


def operators_of_program(graph: Graph) -> Operators:
    """The same of a captured program."""
    seen: Operators = Counter()
    for index in graph.program:
        recipe = graph.recipes[index]
        name = recipe.op.split(".")[1].rstrip("_") if recipe.op.count(".") else recipe.op
        geometry = next((g for v in recipe.outputs if (g := graph.values[v].geometry) is not None), None)
        if name in _ROUNDING and geometry is not None and getattr(torch, geometry.dtype).is_floating_point:
            seen[name, (tuple(geometry.shape),)] += 1
    return seen
