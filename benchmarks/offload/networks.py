"""The convolutional networks of the tables of one pool, at any batch, on any machine. Needs no torch.

`problems/pool` has each of them once, at a batch that no other extent has; the batch is the first extent of a tensor,
or the last one of a transposed matrix, so another one changes extents and no stride.

Units: `_B` bytes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from msgspec.structs import replace

from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, Recipe, Value
from lowtide.ir.machine import Link, Machine, Memory
from lowtide.ir.text import load_graph
from lowtide.profile.machines import load_machine
from lowtide.profile.roofline import predict_graph

FOLDER = Path(__file__).parents[1] / "problems" / "pool"
NETWORKS = ("alexnet", "vgg16", "inception_v4", "resnet50", "resnet101", "resnet152")
CAPTURED = 37
"""The batch of the files."""
K40 = Machine(
    "k40",
    memories=(Memory("device", 12 * 10**9, 512), Memory("host")),
    links=(Link("device", "host", "to_host", 12e9, 1e-5), Link("host", "device", "from_host", 12e9, 1e-5)),
    flops={"float32": 4.29e12, "float64": 1.43e12},
    traffic_Bps=288e9,
    launch_s=5e-6,
)
"""NVIDIA Tesla K40 datasheet: 12 GB GDDR5, 288 GB/s, 4.29 Tflop/s in single precision; its slot is PCIe 3 x16, of whose
16 GB/s pinned copies reach 12."""


def machine(name: str) -> Machine:
    """The K40 of SuperNeurons' tables, or one of the product's machines."""
    return K40 if name == K40.name else load_machine(name)


@cache
def captured(name: str) -> Graph:
    """A network as it is in its file, without seconds.

    Raises:
        PlanFileError: if its file is missing or damaged.
    """
    return load_graph(FOLDER / f"{name}.json.gz")


@cache
def network(name: str, batch: int, machine_name: str) -> Graph:
    """A network at a batch, with a machine's seconds by roofline. O(graph)."""
    graph = captured(name)
    values = tuple(_value(v, batch) for v in graph.values)
    recipes = tuple(_recipe(r, batch) for r in graph.recipes)
    scaled = replace(graph, values=values, recipes=recipes, name=f"{name}, {batch} images, {machine_name} by roofline")
    return predict_graph(scaled, machine(machine_name))


def _value(value: Value, batch: int) -> Value:
    if value.geometry is None:
        return value
    geometry = _geometry(value.geometry, batch)
    size_B = value.size_B + geometry.extent_B - value.geometry.extent_B
    return replace(value, geometry=geometry, size_B=size_B)


def _recipe(recipe: Recipe, batch: int) -> Recipe:
    reads = tuple(r if r.geometry is None else replace(r, geometry=_geometry(r.geometry, batch)) for r in recipe.reads)
    return replace(recipe, reads=reads)


def _geometry(geometry: Geometry, batch: int) -> Geometry:
    return replace(geometry, shape=tuple(batch if n == CAPTURED else n for n in geometry.shape))
