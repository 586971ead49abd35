"""How tensors are cut into tiles: which elements go through a run of operators together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Box = tuple[int | slice, ...]

GRAIN = 32768
"""Elements from which on torch shares an operator among threads, and the least share."""
VECTOR = 64
"""Elements: a multiple of what the inner loop of any kernel takes at once."""


def boxes(shape: Sequence[int], threads: int, tile: int) -> Iterator[Box]:
    """Cuts a shape into boxes that follow one another in memory.

    In one dimension every element is computed as when torch runs an operator on the whole. In several it is where rows
    are whole vectors, and where an equal share for every thread is: then nothing is ever left over.

    Arguments:
        shape: without extents of zero.
        threads: among which torch shares an operator.
        tile: most elements of a box; a multiple of `GRAIN` times `threads`.
    """
    if len(shape) == 1:
        yield from ((slice(begin, end),) for begin, end in _pieces(shape[0], threads, tile))
        return
    inner, split = 1, len(shape) - 1
    while split > 0 and inner * shape[split] <= tile:
        inner *= shape[split]
        split -= 1
    rows = max(1, tile // inner)
    rows -= rows % threads if rows > threads else 0
    few = max(1, GRAIN // 2 // inner)  # of which no operator gives several threads a share
    whole = shape[split] // rows * rows
    for outer in itertools.product(*map(range, shape[:split])):
        for begin in range(0, whole, rows):
            yield (*outer, slice(begin, begin + rows))
        for begin in range(whole, shape[split], few):
            yield (*outer, slice(begin, min(begin + few, shape[split])))


def _pieces(count: int, threads: int, tile: int) -> Iterator[tuple[int, int]]:
    """Cuts a row of elements so that each is computed as when torch runs an operator on the whole row.

    torch gives every thread an equal share, and in each share whole vectors come first, then what is left over. So no
    piece crosses the end of a share, and every piece but the last of a share can itself be shared in whole vectors.
    """
    workers = min(threads, -(-count // GRAIN)) if count > GRAIN else 1
    share = -(-count // workers)
    vectors = VECTOR * threads
    small = max(GRAIN // vectors, 1) * vectors
    for begin in range(0, count, share):
        at, end = begin, min(begin + share, count)
        while at < end:
            left = end - at
            size = tile if left >= tile else min(small, left // vectors * vectors) or left
            yield at, at + size
            at += size


def aligned(tensors: Sequence[Tensor], like: Tensor) -> tuple[tuple[int, ...], list[Tensor]]:
    """Brings tensors to the shape of one of them, with dimensions in its order in memory, and as few as possible.

    Arguments:
        tensors: of the shape of `like` or broadcast to it, or of as many elements in one row; those without dimensions
            stay as they are.
        like: dense.

    Returns: the common shape, and the tensors with it.
    """
    leaps = like.stride()
    order = sorted(range(like.dim()), key=lambda d: (-leaps[d], -like.shape[d], d))
    placed = [t if t.dim() == 0 else _as(t, like).permute(order) for t in tensors]
    shape = [like.shape[d] for d in order]
    strides = [list(t.stride()) for t in placed if t.dim()]
    for d in range(len(shape) - 1, 0, -1):
        if shape[d] == 1 or shape[d - 1] == 1 or all(s[d - 1] == s[d] * shape[d] for s in strides):
            gone = d if shape[d] == 1 else d - 1
            for s in strides:
                del s[gone]
            shape[d - 1 : d + 1] = [shape[d - 1] * shape[d]]
    if not shape:
        shape, strides = [1], [[1] for _ in strides]
    left = iter(strides)
    return tuple(shape), [t if t.dim() == 0 else t.as_strided(shape, next(left), t.storage_offset()) for t in placed]


def _as(tensor: Tensor, like: Tensor) -> Tensor:
    if tensor.shape == like.shape:
        return tensor
    return tensor.view(like.shape) if tensor.numel() == like.numel() else tensor.expand(like.shape)
