"""How low a step comes: SuperNeurons' stages one after the other, and plans of ours over the proved floor."""

from __future__ import annotations

from functools import cache

from benchmarks.offload.networks import NETWORKS, machine, network
from benchmarks.offload.rows import floor_B, linked, smallest_planned
from benchmarks.offload.steps import with_momentum
from benchmarks.parts import Effort, Found, Part, Row, rows_of
from benchmarks.problem_set import load
from benchmarks.results_file import table
from lowtide.ir.graph import Graph
from lowtide.ir.simulate import simulate
from lowtide.planners.classic.superneurons import stage_peaks
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.units import format_B

BATCHES = {"alexnet": 200, "vgg16": 176, "resnet50": 184, "resnet101": 128, "resnet152": 96}
KEYS = ("alexnet", "vgg16", "inception_v3", "resnet50", "resnet101", "resnet152", "gpt2", "bert_large")
_MACHINE = "a100"
_RATE_Bps = 12e9
_WORK = 200_000
_COLUMNS = (
    "network", "batch", "nothing freed", "liveness", "+ pool", "+ recomputation", "largest layer", "cache alone",
    "ours, step without update", "its floor", "over it", "ours, whole step", "its floor", "over it", "overhead there",
    "seconds",
)  # fmt: skip


@cache
def _graph(name: str) -> Graph:
    return network(name, BATCHES[name], _MACHINE) if name in NETWORKS else load(name)


def _measure(name: str, effort: Effort) -> list[Row]:
    graph = _graph(name)
    step = with_momentum(graph, machine(_MACHINE))
    peaks = stage_peaks(graph)
    row: Row = {
        "network": name,
        "graph": graph.name,
        "everything_B": peaks.everything_B,
        "liveness_B": peaks.liveness_B,
        "pool_B": peaks.pool_B,
        "recomputation_B": peaks.recomputation_B,
        "largest_layer_B": peaks.largest_layer_B,
        "cache_B": peaks.cache_B,
    }
    for key, subject in (("fit", graph), ("step", step)):
        plain = simulate(subject, keep_all_schedule(subject))
        least_B = floor_B(subject)
        found = smallest_planned(
            subject, linked(_RATE_Bps), work=_WORK, limit_s=effort.limit_s, floor_B=least_B, top_B=plain.peak_B
        )
        row[f"{key}_floor_B"] = least_B
        row[f"{key}_B"] = None if found is None else found[0]
        row[f"{key}_overhead"] = (
            None if found is None or found[1].time_s is None else found[1].time_s / plain.time_s - 1
        )
        row[f"{key}_seconds"] = None if found is None else found[1].seconds
    return [row]


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, KEYS)
    if not rows:
        return []
    note = (
        "Peaks of one training step, weights included. The first columns are SuperNeurons' stages by name, each with "
        "those before it, as this repository builds them (`planners/classic/pool_stages.py`): forward and backward, "
        "gradients handed over at the end. Largest layer is what the paper states for its last stage; cache alone is "
        "the tensor cache where everything that does not run is evicted. Ours: the smallest peak of a plan found by "
        f"climbing from the proved floor, values moving at {_RATE_Bps / 1e9:g} GB/s each way, {_WORK:,} units of work per "
        "budget; floor: the largest working set of any recipe. A whole step has SGD with momentum, and weights and "
        "momentum may live on the host. Overhead: of the plan at that peak, over keeping everything."
    )
    return [table("The floor", _COLUMNS, [_cells(r) for r in rows], len(rows), note)]


def _cells(row: Row) -> list[object]:
    def over(key: str) -> str:
        return "no plan" if row[f"{key}_B"] is None else f"{row[f'{key}_B'] / row[f'{key}_floor_B']:.3f}"

    def size(key: str) -> str:
        return "no plan" if row[key] is None else format_B(row[key])

    stages = ("everything_B", "liveness_B", "pool_B", "recomputation_B", "largest_layer_B", "cache_B")
    overhead, seconds = row["step_overhead"], row["step_seconds"]
    return [
        row["network"],
        row["graph"].split(", ")[1],
        *(format_B(row[stage]) for stage in stages),
        size("fit_B"),
        format_B(row["fit_floor_B"]),
        over("fit"),
        size("step_B"),
        format_B(row["step_floor_B"]),
        over("step"),
        "no plan" if overhead is None else f"{overhead:.0%}",
        "no plan" if seconds is None else f"{seconds:.1f}",
    ]


FLOOR_PART = Part("floor", KEYS, _measure, _tables)
