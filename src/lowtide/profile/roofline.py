"""Seconds and memory of operators that cannot be run here, from bytes moved and arithmetic done. Torch-free.

Roofline model (Williams, Waterman, Patterson: "Roofline: an insightful visual performance model for multicore
architectures", CACM 52(4), 2009): an operator takes at least its bytes over the memory's bandwidth, at least its
arithmetic over the processor's peak, and at least one launch. The estimate is that least time.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import msgspec

from lowtide.errors import LowtideError
from lowtide.ir.call import Ref
from lowtide.ir.check_graph import MOST_s
from lowtide.ir.geometry import ITEM_B, Geometry
from lowtide.ir.graph import Effect, Graph, MiniTrace, Recipe
from lowtide.ir.machine import Machine
from lowtide.ops.catalogue import kernels
from lowtide.profile.flops import flops
from lowtide.profile.in_place import settled

_LOOKUPS = frozenset({"embedding", "gather", "index", "index_select", "take", "_unsafe_index"})
_READ_TWICE = {
    "_native_batch_norm_legit": 1,
    "_native_batch_norm_legit_functional": 1,
    "native_batch_norm": 1,
    "cudnn_batch_norm": 1,
    "native_batch_norm_backward": 2,
    "cudnn_batch_norm_backward": 2,
}
"""Operators that go twice through the first tensors they read: sums over the batch come before the first result."""
_FLOAT32_ACCUMULATORS = frozenset(
    {
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    }
)


def predict_graph(graph: Graph, machine: Machine) -> Graph:
    """Gives every recipe the time and the mini-trace that a machine would show at best.

    Arguments:
        graph: as captured, with geometries.
        machine: with `flops["float32"]` and `traffic_Bps`.

    Returns: a graph with new times and traces (`measured=False`); values are as they were.

    Raises:
        LowtideError: if the machine lacks the figures that a prediction needs, or would take longer than a day.
    """
    recipes = tuple(
        msgspec.structs.replace(r, time_s=predict_s(graph, r, machine), trace=assumed_trace(graph, r))
        for r in graph.recipes
    )
    if not sum(r.time_s for r in recipes) <= MOST_s:
        raise LowtideError(f"one run of everything would take the machine {machine.name!r} longer than a day")
    return settled(msgspec.structs.replace(graph, recipes=recipes))


def predict_s(graph: Graph, recipe: Recipe, machine: Machine) -> float:
    """Least seconds of one run of a recipe; see `predict_graph`."""
    if machine.traffic_Bps <= 0 or machine.flops.get("float32", 0.0) <= 0:
        raise LowtideError(f"machine {machine.name!r} needs traffic_Bps and flops['float32'] to predict times")
    reads = [_read_geometry(graph, recipe, i) for i in range(len(recipe.reads))]
    outputs = [graph.values[v].geometry for v in recipe.outputs if v != recipe.state]
    work = flops(recipe, reads, outputs)
    traffic_B = _traffic_B(recipe, reads, outputs)
    if (own := kernels().get(recipe.op)) is not None:
        work = work if own.flops is None else own.flops(graph, recipe)
        traffic_B = traffic_B if own.traffic_B is None else own.traffic_B(graph, recipe)
    dtype = next((g.dtype for g in (*reads, *outputs) if g is not None and g.dtype != "bool"), "float32")
    peak = machine.flops.get(dtype, machine.flops["float32"])
    return max(machine.launch_s, traffic_B / machine.traffic_Bps, work / peak)


def assumed_trace(graph: Graph, recipe: Recipe) -> MiniTrace:
    """The allocations that a recipe cannot do without: its outputs, and a workspace where the family has one."""
    owned = {t.output for t in recipe.consumes}
    events: list[int] = []
    outputs: list[int | None] = []
    for position, value in enumerate(recipe.outputs):
        size_B = graph.values[value].size_B
        if value == recipe.state or position in owned or size_B == 0:
            outputs.append(None)
            continue
        outputs.append(len(events))
        events.append(size_B)
    workspace_B = _workspace_B(graph, recipe)
    if workspace_B:
        events += [workspace_B, -(len(events) + 1)]
    return MiniTrace(tuple(events), tuple(outputs))


def _read_geometry(graph: Graph, recipe: Recipe, index: int) -> Geometry | None:
    read = recipe.reads[index]
    if read.geometry is None and not read.views:
        return graph.values[read.value].geometry
    return read.geometry


def _touched_B(geometry: Geometry | None) -> int:
    """Bytes of the distinct elements: an expanded dimension is read once."""
    if geometry is None:
        return 0
    count = 1
    for extent, stride in zip(geometry.shape, geometry.stride, strict=True):
        count *= extent if stride != 0 or extent == 0 else 1
    return count * ITEM_B[geometry.dtype]


def _traffic_B(recipe: Recipe, reads: list[Geometry | None], outputs: list[Geometry | None]) -> int:
    written_B = sum(_touched_B(g) for g in outputs)
    if _name(recipe) in _LOOKUPS and reads:  # of the table, only what is looked up
        return 2 * written_B + sum(_touched_B(g) for g in reads[1:])
    again_B = sum(_touched_B(g) for g in reads[: _READ_TWICE.get(_name(recipe), 0)])
    return written_B + again_B + sum(_touched_B(g) for g in reads)


def _workspace_B(graph: Graph, recipe: Recipe) -> int:
    """Float32 accumulators of attention's backward (one per query gradient); the sorting of embedding gradients."""
    own = kernels().get(recipe.op)
    if own is not None and own.workspace_B is not None:
        return own.workspace_B(graph, recipe)
    name = _name(recipe)
    if name in _FLOAT32_ACCUMULATORS and len(recipe.reads) > 1 and (query := _read_geometry(graph, recipe, 1)):
        return query.numel * ITEM_B["float32"]
    device = next((g.device for v in recipe.outputs if (g := graph.values[v].geometry)), "cpu")
    if name == "embedding_dense_backward" and device != "cpu" and len(recipe.args) > 1:
        index = recipe.args[1]
        geometry = _read_geometry(graph, recipe, index.index) if isinstance(index, Ref) else None
        return 4 * _touched_B(geometry)
    return 0


def _name(recipe: Recipe) -> str:
    parts = recipe.op.split(".")
    return parts[1] if len(parts) > 1 else recipe.op


def replayed(graph: Graph, recipe: Recipe) -> int | None:
    """Id of the random recipe that a recipe replays; None for any other recipe."""
    if recipe.effect is not Effect.PURE or recipe.state is None:
        return None
    makers = (graph.recipes[m] for m in graph.producers[recipe.state])
    return next((m.id for m in makers if m.effect is Effect.RANDOM and m.op == recipe.op), None)
