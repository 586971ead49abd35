"""Packings to place: by hand, at random, and in the shape of a training step."""

from __future__ import annotations

import random

from lowtide.ir.packing import Buffer, Packing

KIB = 1024


def step_of_training(layers: int, seed: int = 0, alignment_B: int = 64) -> Packing:
    """Forward and backward: activations that nest, short temporaries, gradients that live to the end."""
    draw = random.Random(seed)
    end = 5 * layers
    tick, buffers, activations = 0, [], []

    def temporaries() -> None:
        for _ in range(draw.choice((0, 1, 1, 2))):
            buffers.append(Buffer(tick, tick + draw.choice((1, 2)), _size_B(draw) // draw.choice((1, 4)) + 1))

    for _ in range(layers):
        activations.append((tick, _size_B(draw)))
        temporaries()
        tick += 2
    for start, size_B in reversed(activations):
        buffers.append(Buffer(start, tick + 2, size_B))
        temporaries()
        buffers.append(Buffer(tick, min(end, tick + 4), size_B))
        buffers.append(Buffer(tick + 1, end, size_B // 4 + 1))
        tick += 2
    return Packing(tuple(buffers), alignment_B)


def nested(depth: int, alignment_B: int = 512) -> Packing:
    """A stack: what begins first ends last, as when everything is kept from forward to backward."""
    draw = random.Random(depth)
    return Packing(tuple(Buffer(i, 2 * depth - i, _size_B(draw)) for i in range(depth)), alignment_B)


def at_random(seed: int, count: int, *, period: int | None = None, given: int = 0, alignment_B: int = 16) -> Packing:
    """Any lifetimes and sizes; some with given offsets, one above another so that they do not collide."""
    draw = random.Random(seed)
    last = period or 2 * count
    buffers, top_B = [], 0
    for number in range(count):
        start = draw.randrange(last)
        stop = draw.randrange(start + 1, last + 1) if period is None else draw.randrange(last + 1)
        size_B = draw.choice((0, 1, 16, 40, 100, 160, 900))
        offset_B = None
        if number < given:
            offset_B = top_B + alignment_B * draw.randrange(4)
            top_B = offset_B + -(-size_B // alignment_B) * alignment_B
        buffers.append(Buffer(start, stop, size_B, offset_B))
    draw.shuffle(buffers)
    return Packing(tuple(buffers), alignment_B, period)


def perfect(seed: int, pieces: int, *, width: int = 40, height: int = 64) -> Packing:
    """A rectangle of ticks and bytes, cut into buffers again and again: it fits its height, with nothing to spare."""
    draw = random.Random(seed)
    rectangles = [(0, width, 0, height)]
    while len(rectangles) < pieces:
        start, stop, low, high = rectangles.pop(draw.randrange(len(rectangles)))
        if draw.random() < 0.5 and stop - start > 1:
            cut = draw.randrange(start + 1, stop)
            rectangles += [(start, cut, low, high), (cut, stop, low, high)]
        elif high - low > 1:
            cut = draw.randrange(low + 1, high)
            rectangles += [(start, stop, low, cut), (start, stop, cut, high)]
        else:
            rectangles.append((start, stop, low, high))
    draw.shuffle(rectangles)
    return Packing(tuple(Buffer(start, stop, high - low) for start, stop, low, high in rectangles))


def _size_B(draw: random.Random) -> int:
    return int(2 ** draw.uniform(8, 22))
