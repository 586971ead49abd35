"""Networks as Checkmate models them: layers, their outputs' bytes, and multiplications for time; and its baselines.

P. Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization", MLSys 2020. A layer's
forward takes its multiplications (pooling and reshaping none), its backward twice as many; the gradient of a layer's
output takes as many bytes as the output, and is computed from that output, the outputs of the layers that read it, and
their gradients. The input, the parameters and their gradients are not counted. Here one multiplication takes one
picosecond.

Units: `_B` bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from lowtide.ir.call import Read
from lowtide.ir.graph import Graph, MiniTrace, Recipe, Role, Segment, Value
from lowtide.ir.schedule import Boundary, Drop, Run, Schedule, Step

_FLOAT_B = 4
VGG19 = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels and convolutions between two poolings
VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


@dataclass(frozen=True)
class Layer:
    """One layer: what its output takes, how many multiplications, and which layers it reads (none: the input)."""

    name: str
    size_B: int
    multiplications: int
    reads: tuple[int, ...]


def vgg(blocks: Sequence[tuple[int, int]] = VGG19, batch: int = 1, side: int = 224) -> tuple[Layer, ...]:
    """The layers of a VGG: activations are part of the convolutions."""
    layers: list[Layer] = []

    def add(name: str, elements: int, multiplications: int) -> None:
        reads = (len(layers) - 1,) if layers else ()
        layers.append(Layer(name, _FLOAT_B * batch * elements, batch * multiplications, reads))

    inner = 3
    for block, (channels, count) in enumerate(blocks, 1):
        for k in range(1, count + 1):
            add(f"block{block}_conv{k}", channels * side**2, 9 * inner * channels * side**2)
            inner = channels
        side //= 2
        add(f"block{block}_pool", channels * side**2, 0)
    inner *= side**2
    add("flatten", inner, 0)
    for name, width in (("dense_1", 4096), ("dense_2", 4096), ("dense_3", 1000)):
        add(name, width, inner * width)
        inner = width
    return tuple(layers)


def mobilenet(batch: int = 1, side: int = 224) -> tuple[Layer, ...]:
    """The layers of MobileNet: per convolution a batch norm and a rectifier of their own, and paddings."""
    layers: list[Layer] = []

    def add(name: str, elements: int, multiplications: int) -> None:
        reads = (len(layers) - 1,) if layers else ()
        layers.append(Layer(name, _FLOAT_B * batch * elements, batch * multiplications, reads))

    def convolution(name: str, channels: int, side: int, each: int) -> None:
        elements = channels * side**2
        add(f"conv_{name}", elements, each * elements)
        add(f"batch_norm_{name}", elements, 4 * elements)
        add(f"relu_{name}", elements, elements)

    add("pad_0", 3 * (side + 1) ** 2, 0)
    side //= 2
    convolution("0", 32, side, 9 * 3)
    inner = 32
    plan = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
    for block, (channels, stride) in enumerate(plan, 1):
        if stride == 2:
            add(f"pad_{block}", inner * (side + 1) ** 2, 0)
            side //= 2
        convolution(f"dw_{block}", inner, side, 9)
        convolution(f"pw_{block}", channels, side, inner)
        inner = channels
    add("pool", inner, 0)
    add("dense", 1000, 1000 * inner)
    return tuple(layers)


def unet(batch: int = 1, width: int = 64, depth: int = 4, side: int = 256) -> tuple[Layer, ...]:
    """The layers of a U-Net: convolutions with their activations, skips that are concatenated on the way up."""
    layers: list[Layer] = []

    def add(name: str, elements: int, multiplications: int, *reads: int) -> int:
        layers.append(Layer(name, _FLOAT_B * batch * elements, batch * multiplications, reads))
        return len(layers) - 1

    def convolutions(name: str, at: tuple[int, ...], inner: int, channels: int, side: int) -> int:
        elements = channels * side**2
        first = add(f"{name}_conv1", elements, 9 * inner * elements, *at)
        return add(f"{name}_conv2", elements, 9 * channels * elements, first)

    at: tuple[int, ...] = ()
    skips, inner = [], 3
    for level in range(depth):
        channels, here = width << level, side >> level
        skips.append(convolutions(f"down{level}", at, inner, channels, here))
        at = (add(f"pool{level}", channels * (here // 2) ** 2, 0, skips[-1]),)
        inner = channels
    last = convolutions("bottom", at, inner, 2 * inner, side >> depth)
    for level in reversed(range(depth)):
        channels, here = width << level, side >> level
        elements = 2 * channels * here**2
        up = add(f"up{level}", elements, 5 * elements, last)
        joined = add(f"join{level}", elements + channels * here**2, 0, up, skips[level])
        last = convolutions(f"up{level}", (joined,), 3 * channels, channels, here)
    add("out", side**2, width * side**2, last)
    return tuple(layers)


def training(layers: Sequence[Layer], name: str, batch: int = 1) -> Graph:
    """The step of a network: forward, a loss on the last layer, and the gradient of every layer's output.

    Value 0 is the input; recipe k brings value k + 1: the layers', the loss, then the gradients, last layer first.
    """
    count = len(layers)
    loss = Layer("loss", _FLOAT_B * batch, 0, (count - 1,))
    forward = (*layers, loss)
    readers: list[list[int]] = [[] for _ in forward]
    for k, layer in enumerate(forward):
        for origin in layer.reads:
            readers[origin].append(k)
    values = [Value(0, "input", 0, Role.INPUT, arrives=0, persistent=True)]
    recipes: list[Recipe] = []

    def add(op: str, size_B: int, multiplications: int, reads: Sequence[int], segment: int) -> None:
        values.append(Value(len(values), op, size_B, Role.ACTIVATION))
        trace = MiniTrace((size_B,), (0,), measured=True)
        seen = tuple(Read(v) for v in dict.fromkeys(reads))
        time_s = multiplications * 1e-12
        recipes.append(
            Recipe(len(recipes), op, (values[-1].id,), seen, segment=segment, time_s=time_s, trace=trace),
        )

    for layer in forward:
        add(layer.name, layer.size_B, layer.multiplications, [r + 1 for r in layer.reads] or [0], 0)
    gradient = {}
    for k in reversed(range(count)):
        gradient[k] = len(values)
        behind = [gradient[r] for r in readers[k] if r in gradient]
        reads = [k + 1, *(r + 1 for r in readers[k]), *behind]
        add(f"gradient of {layers[k].name}", layers[k].size_B, 2 * layers[k].multiplications, reads, 1)
    last = values[-1]
    values[-1] = Value(last.id, last.name, last.size_B, Role.GRADIENT, leaves=1)
    segments = (Segment("forward"), Segment("backward"))
    return Graph(tuple(values), tuple(recipes), tuple(range(len(recipes))), segments, name=name)


def every_root(count: int) -> tuple[int, ...]:
    """Checkmate's square root of n: of so many layers, every k-th, k the root of their number, rounded down."""
    k = math.isqrt(count)
    return tuple(range(k - 1, count, k))


def baseline(graph: Graph, checkpoints: Collection[int]) -> Schedule:
    """The schedule that Checkmate's published baselines stand for, with what it holds needlessly.

    A checkpointed layer's output is held to the end of the step, not to its last use, and so are whole segments
    between checkpoints while one of their layers goes backward. That is why checkpointing all of VGG-19 is published
    with more bytes than keeping every value until its last use takes.

    Arguments:
        graph: of a network without skips, from `training`.
        checkpoints: layers.
    """
    count = len(graph.program)
    layers = count // 2
    held = [set[int]() for _ in range(count + 1)]  # per stage the recipes whose values it begins with
    parents = [[v.value - 1 for v in graph.recipes[k].reads if v.value] for k in range(count)]
    for k, origins in enumerate(parents):
        for origin in origins:
            held[k].add(origin)
            if origin > layers and k > layers:
                for t in range(origin + 1, k + 1):
                    held[t].add(origin)
    for c in checkpoints:
        for t in range(c + 1, count):
            held[t].add(c)
    bounds = [0, *(c for c in sorted(checkpoints) if c > 0), layers + 1]
    for first, stop in itertools.pairwise(bounds):
        segment = range(first, stop)
        for t in range(first, stop + 1):
            held[t].update(range(first, min(t, stop)))
        for x in segment:
            backward = count - 1 - x
            held[backward].update(i for i in segment if i < backward)
            if backward > layers:  # the gradients of a segment stay until it is done
                for t in range(backward + 1, count - first):
                    held[t].add(backward)
    return Schedule(tuple(_steps(parents, held, layers + 1)))


def _steps(parents: list[list[int]], held: list[set[int]], backward: int) -> Iterator[Step]:
    """Per stage what runs again for its values and the next stage's, in order, and what is dropped once."""
    there: set[int] = set()
    yield Boundary(0)
    for t in range(len(parents)):
        if t == backward:
            yield Boundary(1)
        later = held[t + 1] if t + 1 < len(parents) else set()
        order = [t]
        wanted = [*parents[t], *(v for v in later if v < t)]
        while wanted:
            v = wanted.pop()
            if v not in there and v not in order:
                order.append(v)
                wanted += parents[v]
        order.sort()
        for v in sorted(there - later - {u for k in order for u in parents[k]}):
            there.discard(v)
            yield Drop(v + 1)
        for place, k in enumerate(order):
            still = later | {u for r in order[place + 1 :] for u in parents[r]}
            last = k == len(parents) - 1
            yield Run(k, (k + 1,) if k in still or last else ())
            there |= {k} if k in still else set()
            for v in sorted(there - still):
                there.discard(v)
                yield Drop(v + 1)
