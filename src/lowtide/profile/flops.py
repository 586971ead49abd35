"""Floating-point operations of an operator call, from geometry alone. Torch-free.

A multiplication and an addition count as two. Operators outside the listed families count none: their time is
traffic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowtide.ir.call import Arg, Items, Ref
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Recipe

Shapes = Sequence[tuple[int, ...]]
_BACKWARD = 2.5  # attention's backward multiplies five pairs of matrices, its forward two


def flops(recipe: Recipe, reads: Sequence[Geometry | None], outputs: Sequence[Geometry | None]) -> float:
    """Arithmetic of one run.

    Arguments:
        recipe: what is called.
        reads: geometry of what each `Ref` is passed.
        outputs: geometry of what it returns.

    Returns: operations; 0 for families that are not arithmetic-bound or whose geometry is unknown.
    """
    parts = recipe.op.split(".")
    rule = _RULES.get(parts[1] if len(parts) > 1 else recipe.op)
    if rule is None or any(g is None for g in reads):
        return 0.0
    shapes = [_passed(arg, reads) for arg in recipe.args]
    results = [g.shape for g in outputs if g is not None]
    try:
        return float(rule(recipe.args, shapes, results))
    except IndexError:  # fewer arguments or dimensions than the family has
        return 0.0


def _passed(arg: Arg, reads: Sequence[Geometry | None]) -> tuple[int, ...]:
    geometry = reads[arg.index] if isinstance(arg, Ref) else None
    return geometry.shape if geometry is not None else ()


Rule = Callable[[tuple[Arg, ...], Shapes, Shapes], float]


def _product(extents: Sequence[int]) -> int:
    count = 1
    for extent in extents:
        count *= extent
    return count


def _matmul(left: int) -> Rule:
    """Every element of the result sums over the left matrix's last dimension."""
    return lambda _args, shapes, results: 2.0 * _product(results[0]) * shapes[left][-1]


def _per_image(
    input_shape: tuple[int, ...], output_shape: tuple[int, ...], weight: tuple[int, ...], turned: bool
) -> float:
    """Each position of the output (of the input, if transposed) meets one filter's weights per channel."""
    positions = input_shape if turned else output_shape
    return 2.0 * positions[0] * _product(positions[2:]) * _product(weight)


def _convolution(args: tuple[Arg, ...], shapes: Shapes, results: Shapes) -> float:
    return _per_image(shapes[0], results[0], shapes[1], bool(args[6]))


def _convolution_backward(args: tuple[Arg, ...], shapes: Shapes, _results: Shapes) -> float:
    mask = args[10]
    wanted = sum(bool(m) for m in mask.items[:2]) if isinstance(mask, Items) else 2
    return wanted * _per_image(shapes[1], shapes[0], shapes[2], bool(args[7]))


def _attention(query: int, causal: int, factor: float = 1.0) -> Rule:
    """Queries times keys, weights times values; half of it under a causal mask."""

    def rule(args: tuple[Arg, ...], shapes: Shapes, _results: Shapes) -> float:
        q, k, v = shapes[query], shapes[query + 1], shapes[query + 2]
        share = 0.5 if causal < len(args) and args[causal] is True else 1.0
        return factor * share * 2.0 * _product(q[:-1]) * k[-2] * (q[-1] + v[-1])

    return rule


_RULES: dict[str, Rule] = {
    "mm": _matmul(0),
    "bmm": _matmul(0),
    "matmul": _matmul(0),
    "linear": _matmul(0),
    "mv": _matmul(0),
    "addmm": _matmul(1),
    "baddbmm": _matmul(1),
    "addmv": _matmul(1),
    "_scaled_mm": _matmul(0),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention_for_cpu": _attention(0, 4),
    "_scaled_dot_product_flash_attention": _attention(0, 4),
    "_scaled_dot_product_efficient_attention": _attention(0, 6),
    "_scaled_dot_product_cudnn_attention": _attention(0, 6),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(1, 7, _BACKWARD),
    "_scaled_dot_product_flash_attention_backward": _attention(1, 11, _BACKWARD),
    "_scaled_dot_product_efficient_attention_backward": _attention(1, 11, _BACKWARD),
    "_scaled_dot_product_cudnn_attention_backward": _attention(1, 14, _BACKWARD),
}
