"""Networks as Checkmate models them: layers, their outputs' bytes, and multiplications for time.

P. Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization", MLSys 2020. A layer's
forward takes its multiplications (pooling and reshaping none), its backward twice as many; the gradient of a layer's
output takes as many bytes as the output, and is computed from that output, the outputs of the layers that read it, and
their gradients. The input, the parameters and their gradients are not counted. Here one multiplication takes one
picosecond.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowtide.ir.call import Read
from lowtide.ir.graph import Graph, MiniTrace, Recipe, Role, Segment, Value

_FLOAT_B = 4
VGG19 = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels and convolutions between two poolings
VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


@dataclass(frozen=True)
class Layer:
    """One layer: what its output takes, how many multiplications, which layers it reads (none: the input), parameters."""

    name: str
    size_B: int
    multiplications: int
    reads: tuple[int, ...]
    parameters: int = 0


class Layers(list[Layer]):
    """Layers in the making, for batches of one size."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch

    @property
    def last(self) -> tuple[int, ...]:
        """The layer added last; none before there is one."""
        return (len(self) - 1,) if self else ()

    def add(
        self,
        name: str,
        elements: int,
        multiplications: int = 0,
        reads: Sequence[int] | None = None,
        parameters: int = 0,
    ) -> int:
        """Adds a layer behind the last one, or behind others, and returns its number; sizes are for one sample."""
        behind = self.last if reads is None else tuple(reads)
        self.append(Layer(name, _FLOAT_B * self.batch * elements, self.batch * multiplications, behind, parameters))
        return len(self) - 1

    def convolution(
        self,
        name: str,
        inner: int,
        channels: int,
        area: int,
        kernel: int,
        reads: Sequence[int] | None = None,
        *,
        bias: bool = True,
    ) -> int:
        """Adds a convolution with so many places in its kernel."""
        each = kernel * inner
        return self.add(name, channels * area, each * channels * area, reads, channels * (each + bias))

    def batch_norm(self, name: str, channels: int, area: int, reads: Sequence[int] | None = None) -> int:
        """Adds a batch norm: four operations per element, four parameters per channel."""
        return self.add(name, channels * area, 4 * channels * area, reads, 4 * channels)


def vgg(blocks: Sequence[tuple[int, int]] = VGG19, batch: int = 1, side: int = 224) -> tuple[Layer, ...]:
    """The layers of a VGG: activations are part of the convolutions."""
    layers = Layers(batch)
    inner = 3
    for block, (channels, count) in enumerate(blocks, 1):
        for k in range(1, count + 1):
            layers.convolution(f"block{block}_conv{k}", inner, channels, side**2, 9)
            inner = channels
        side //= 2
        layers.add(f"block{block}_pool", channels * side**2)
    inner *= side**2
    layers.add("flatten", inner)
    for name, width in (("dense_1", 4096), ("dense_2", 4096), ("dense_3", 1000)):
        layers.convolution(name, inner, width, 1, 1)
        inner = width
    return tuple(layers)


def mobilenet(batch: int = 1, side: int = 224) -> tuple[Layer, ...]:
    """The layers of MobileNet: per convolution a batch norm and a rectifier of their own, and paddings."""
    layers = Layers(batch)

    def convolution(name: str, inner: int, channels: int, side: int, kernel: int) -> None:
        layers.convolution(f"conv_{name}", inner, channels, side**2, kernel, bias=False)
        layers.batch_norm(f"batch_norm_{name}", channels, side**2)
        layers.add(f"relu_{name}", channels * side**2, channels * side**2)

    layers.add("pad_0", 3 * (side + 1) ** 2)
    side //= 2
    convolution("0", 3, 32, side, 9)
    inner = 32
    plan = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
    for block, (channels, stride) in enumerate(plan, 1):
        if stride == 2:
            layers.add(f"pad_{block}", inner * (side + 1) ** 2)
            side //= 2
        convolution(f"dw_{block}", 1, inner, side, 9)
        convolution(f"pw_{block}", inner, channels, side, 1)
        inner = channels
    for name in ("pool", "reshape", "dropout"):
        layers.add(name, inner)
    layers.convolution("predictions", inner, 1000, 1, 1)
    layers.add("flat", 1000)
    layers.add("softmax", 1000, 1000)
    return tuple(layers)


def unet(batch: int = 1, width: int = 64, depth: int = 4, side: int = 256) -> tuple[Layer, ...]:
    """The layers of a U-Net: convolutions with their activations, skips that are concatenated on the way up."""
    layers = Layers(batch)

    def convolutions(name: str, reads: tuple[int, ...], inner: int, channels: int, side: int) -> int:
        first = layers.convolution(f"{name}_conv1", inner, channels, side**2, 9, reads)
        return layers.convolution(f"{name}_conv2", channels, channels, side**2, 9, (first,))

    skips, inner = [], 3
    for level in range(depth):
        channels, here = width << level, side >> level
        skips.append(convolutions(f"down{level}", layers.last, inner, channels, here))
        layers.add(f"pool{level}", channels * (here // 2) ** 2)
        inner = channels
    last = convolutions("bottom", layers.last, inner, 2 * inner, side >> depth)
    for level in reversed(range(depth)):
        channels, here = width << level, side >> level
        elements = 2 * channels * here**2
        up = layers.add(f"up{level}", elements, 5 * elements, (last,))
        joined = layers.add(f"join{level}", elements + channels * here**2, 0, (up, skips[level]))
        last = convolutions(f"up{level}", (joined,), 3 * channels, channels, here)
    layers.convolution("out", width, 1, side**2, 1)
    return tuple(layers)


def vgg_unet(batch: int = 1, height: int = 416, width: int = 608, classes: int = 19) -> tuple[Layer, ...]:
    """The layers of Checkmate's U-Net: the first four blocks of VGG-16, whose poolings are the skips.

    As in `keras_segmentation`: a padding, a convolution and a batch norm per step on the way up, nearest upsampling,
    the output at half the input's sides.
    """
    layers = Layers(batch)
    skips: list[tuple[int, int]] = []  # of each block the pooling's number and its channels
    area, inner = height * width, 3
    for block, (channels, count) in enumerate(VGG16[:4], 1):
        for k in range(1, count + 1):
            layers.convolution(f"block{block}_conv{k}", inner, channels, area, 9)
            inner = channels
        area //= 4
        skips.append((layers.add(f"block{block}_pool", channels * area), channels))
    side = [height // 16, width // 16]

    def step(name: str, inner: int, channels: int) -> None:
        layers.add(f"{name}_pad", inner * (side[0] + 2) * (side[1] + 2))
        layers.convolution(f"{name}_conv", inner, channels, side[0] * side[1], 9)
        layers.batch_norm(f"{name}_norm", channels, side[0] * side[1])

    step("bottom", inner, 512)
    inner = 512
    for level, channels in ((2, 256), (1, 128), (0, 64)):
        side = [2 * n for n in side]
        area = side[0] * side[1]
        skip, more = skips[level]
        up = layers.add(f"up{level}", inner * area, inner * area)
        layers.add(f"join{level}", (inner + more) * area, 0, (up, skip))
        step(f"up{level}", inner + more, channels)
        inner = channels
    layers.convolution("classes", inner, classes, area, 9)
    layers.add("reshape", classes * area)
    layers.add("softmax", classes * area, classes * area)
    return tuple(layers)


def resnet50(batch: int = 1, side: int = 224) -> tuple[Layer, ...]:
    """The layers of ResNet-50: every convolution, batch norm, rectifier, addition and padding by itself."""
    layers = Layers(batch)
    layers.add("pad", 3 * (side + 6) ** 2)
    side //= 2
    layers.convolution("conv", 3, 64, side**2, 49)
    layers.batch_norm("norm", 64, side**2)
    layers.add("relu", 64 * side**2, 64 * side**2)
    layers.add("pool_pad", 64 * (side + 2) ** 2)
    side //= 2
    layers.add("pool", 64 * side**2)
    inner = 64
    for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 2):
        for block in range(1, count + 1):
            side //= 2 if stage > 2 and block == 1 else 1
            _bottleneck(layers, f"conv{stage}_{block}", inner, width, side**2, shortcut=block == 1)
            inner = 4 * width
    layers.add("mean", inner)
    layers.convolution("predictions", inner, 1000, 1, 1)
    return tuple(layers)


def _bottleneck(layers: Layers, name: str, inner: int, width: int, area: int, *, shortcut: bool) -> None:
    """Three convolutions and what goes past them, in the order in which Keras lists such layers."""
    past, more = layers.last, 4 * width
    for k, (before, kernel) in enumerate(((inner, 1), (width, 9)), 1):
        layers.convolution(f"{name}_{k}", before, width, area, kernel)
        layers.batch_norm(f"{name}_{k}_norm", width, area)
        layers.add(f"{name}_{k}_relu", width * area, width * area)
    through = layers.last
    if shortcut:
        past = (layers.convolution(f"{name}_0", inner, more, area, 1, past),)
    through = (layers.convolution(f"{name}_3", width, more, area, 1, through),)
    if shortcut:
        past = (layers.batch_norm(f"{name}_0_norm", more, area, past),)
    layers.batch_norm(f"{name}_3_norm", more, area, through)
    layers.add(f"{name}_add", more * area, 2 * more * area, (*past, *layers.last))
    layers.add(f"{name}_out", more * area, more * area)


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
