"""Which integer arguments of an operator are indices, and how far they reach. Torch-free.

All indices zero would be valid too, but then every access hits the same cache line (and every scattered addition the
same element), and the measured time is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowtide.ir.call import Arg, Items, Ref
from lowtide.ir.geometry import Geometry

Reads = Sequence[Geometry]
Args = Sequence[Arg]
Rule = Callable[[Args, Reads], dict[int, int]]  # index of a read -> how many different indices are valid


def index_bounds(op: str, args: Args, reads: Reads) -> dict[int, int]:
    """For the reads of a call that hold indices, the number of valid ones (indices run from 0).

    Arguments:
        op: `"namespace.name.overload"`.
        args: positional arguments, as in a recipe.
        reads: geometry of what `Ref(i)` is passed.
    """
    parts = op.split(".")
    rule = _RULES.get(parts[1] if len(parts) > 1 else op)
    return {} if rule is None else {read: n for read, n in rule(args, reads).items() if n > 0}


def _shape(args: Args, at: int, reads: Reads) -> tuple[int, ...]:
    arg = args[at] if at < len(args) else None
    return reads[arg.index].shape if isinstance(arg, Ref) else ()


def _number(args: Args, at: int) -> int:
    arg = args[at] if at < len(args) else None
    return int(arg) if isinstance(arg, int) else 0


def _one(args: Args, at: int, bound: int) -> dict[int, int]:
    arg = args[at] if at < len(args) else None
    return {arg.index: bound} if isinstance(arg, Ref) else {}


def _rows(table: int, index: int) -> Rule:
    """Indices select rows of a table."""
    return lambda args, reads: _one(args, index, next(iter(_shape(args, table, reads)), 0))


def _counted(index: int, count: int) -> Rule:
    """An argument says how many there are."""
    return lambda args, _reads: _one(args, index, _number(args, count))


def _along(table: int, dim: int, index: int) -> Rule:
    """Indices select along the dimension that an argument names."""

    def rule(args: Args, reads: Reads) -> dict[int, int]:
        shape = _shape(args, table, reads)
        return _one(args, index, shape[_number(args, dim)] if shape else 1)

    return rule


def _classes(scores: int, target: int) -> Rule:
    """Targets select classes: dimension 1 of batched scores, else the only one."""

    def rule(args: Args, reads: Reads) -> dict[int, int]:
        shape = _shape(args, scores, reads)
        return _one(args, target, shape[1] if len(shape) > 1 else next(iter(shape), 0))

    return rule


def _projected(logits: int, matrix: int, target: int) -> Rule:
    """Targets select classes: the columns of logits, or of the matrix that they are made with."""

    def rule(args: Args, reads: Reads) -> dict[int, int]:
        shape = _shape(args, logits, reads) or _shape(args, matrix, reads)
        return _one(args, target, shape[1] if len(shape) > 1 else 0)

    return rule


def _flat(image: int, index: int, dims: int) -> Rule:
    """Indices address the last `dims` dimensions, flattened; all of them for 0."""

    def rule(args: Args, reads: Reads) -> dict[int, int]:
        return _one(args, index, _product(_shape(args, image, reads)[-dims:]))

    return rule


def _unpooled(size: int, index: int) -> Rule:
    """Indices address an output whose size is a list argument."""

    def rule(args: Args, _reads: Reads) -> dict[int, int]:
        sizes = args[size] if size < len(args) else None
        extents = [n for n in sizes.items if isinstance(n, int)] if isinstance(sizes, Items) else []
        return _one(args, index, _product(extents))

    return rule


def _sized(sizes: int, dim: int, index: int) -> Rule:
    """Indices select along a dimension of a size that is a list argument."""

    def rule(args: Args, _reads: Reads) -> dict[int, int]:
        listed = args[sizes] if sizes < len(args) else None
        extents = listed.items if isinstance(listed, Items) else ()
        return _one(args, index, _number(extents, _number(args, dim)) if extents else 0)

    return rule


def _each(table: int, indices: int) -> Rule:
    """A list of index tensors, one per dimension from the first; a mask stands for as many as it has."""

    def rule(args: Args, reads: Reads) -> dict[int, int]:
        shape, listed = _shape(args, table, reads), args[indices]
        bounds: dict[int, int] = {}
        at = 0
        for item in listed.items if isinstance(listed, Items) else ():
            if isinstance(item, Ref) and reads[item.index].dtype in ("bool", "uint8"):
                at += len(reads[item.index].shape)
                continue
            if isinstance(item, Ref) and at < len(shape):
                bounds[item.index] = shape[at]
            at += 1
        return bounds

    return rule


def _product(extents: Sequence[int]) -> int:
    count = 1
    for extent in extents:
        count *= extent
    return count


_RULES: dict[str, Rule] = {
    "embedding": _rows(0, 1),
    "embedding_dense_backward": _counted(1, 2),
    "embedding_backward": _counted(1, 2),
    "_embedding_bag": _rows(0, 1),
    "_embedding_bag_forward_only": _rows(0, 1),
    "nll_loss": _classes(0, 1),
    "nll_loss_nd": _classes(0, 1),
    "nll_loss2d": _classes(0, 1),
    "nll_loss_forward": _classes(0, 1),
    "nll_loss2d_forward": _classes(0, 1),
    "nll_loss_backward": _classes(1, 2),
    "nll_loss2d_backward": _classes(1, 2),
    "cross_entropy_loss": _classes(0, 1),
    "cross_entropy": _classes(0, 1),
    "cross_entropy_backward": _classes(0, 1),
    "linear_cross_entropy": _projected(0, 2, 4),
    "linear_cross_entropy_input_gradient": _projected(0, 2, 4),
    "linear_cross_entropy_weight_gradient": _projected(0, 2, 4),
    "linear_cross_entropy_backward": _projected(0, 2, 4),
    "linear_cross_entropy_with_gradients": _projected(0, 2, 4),
    "add_embedding_gradient": _rows(0, 2),
    "multi_margin_loss": _classes(0, 1),
    "multi_margin_loss_backward": _classes(1, 2),
    "gather": _along(0, 1, 2),
    "scatter": _along(0, 1, 2),
    "scatter_": _along(0, 1, 2),
    "scatter_add": _along(0, 1, 2),
    "scatter_add_": _along(0, 1, 2),
    "scatter_reduce": _along(0, 1, 2),
    "index_select": _along(0, 1, 2),
    "index_add": _along(0, 1, 2),
    "index_add_": _along(0, 1, 2),
    "index_copy": _along(0, 1, 2),
    "index_copy_": _along(0, 1, 2),
    "index_fill": _along(0, 1, 2),
    "index_fill_": _along(0, 1, 2),
    "index_reduce": _along(0, 1, 2),
    "index_select_backward": _sized(1, 2, 3),
    "take": _flat(0, 1, 0),
    "put": _flat(0, 1, 0),
    "index": _each(0, 1),
    "_unsafe_index": _each(0, 1),
    "index_put": _each(0, 1),
    "index_put_": _each(0, 1),
    "_index_put_impl": _each(0, 1),
    "_unsafe_index_put": _each(0, 1),
    "one_hot": _counted(0, 1),
    "max_unpool2d": _unpooled(2, 1),
    "max_unpool3d": _unpooled(2, 1),
    "max_pool2d_with_indices_backward": _flat(1, 7, 2),
    "max_pool3d_with_indices_backward": _flat(1, 7, 3),
    "adaptive_max_pool2d_backward": _flat(1, 2, 2),
    "adaptive_max_pool3d_backward": _flat(1, 2, 3),
    "fractional_max_pool2d_backward": _flat(1, 4, 2),
    "fractional_max_pool3d_backward": _flat(1, 4, 3),
}
