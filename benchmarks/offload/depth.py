"""How deep a ResNet can be: SuperNeurons' test, planned with weights, gradients and momentum counted."""

from __future__ import annotations

import time
from functools import cache

from benchmarks.offload.networks import K40, network
from benchmarks.offload.rows import floor_B, ours
from benchmarks.offload.steps import with_momentum
from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of, say
from benchmarks.results_file import table
from lowtide.ir.graph import Graph
from lowtide.ir.repetition import deepened
from lowtide.ir.simulate import simulate
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.units import format_B

BUDGET_B = 12 * 10**9
BATCH = 16
DEPTHS = (152, 506, 1010, 1919, 2498, 4997, 9998)
"""Weighted layers, 3 * (n1 + n2 + n3 + n4) + 2, of n1 = 6, n2 = 32, n4 = 6; the first is that of ResNet-152's depth."""
PUBLISHED = {"Caffe": 148, "Torch": 152, "MXNet": 480, "TensorFlow": 592, "SuperNeurons": 1920}
WORK = 100_000
KEYS = (*map(str, DEPTHS), "published")
_COLUMNS = (
    "weighted layers", "basic layers", "operators", "weights and momentum", "keep-all peak", "floor, homes on the device",
    "floor", "plan", "peak", "on the host", "homes there", "overhead", "bound", "graph s", "planned in s", "of a processor",
)  # fmt: skip


@cache
def deep(layers: int) -> Graph:
    """A whole step of the family, 16 images, a K40's seconds.

    Arguments:
        layers: 3 * n3 + 134, from 140 on.
    """
    blocks, rest = divmod(layers - 2, 3)
    if rest or blocks < 46:
        raise KeyError(f"the family has 140, 143, ... layers, and not {layers}")
    names = ("body.layer1", "body.layer2", "body.layer3", "body.layer4")
    times = {name: n - 1 for name, n in zip(names, (6, 32, blocks - 44, 6), strict=True)}
    return with_momentum(deepened(network("resnet50", BATCH, K40.name), times), K40)


def _measure(key: str, effort: Effort) -> list[Row]:
    if key == "published":
        return [dict(PUBLISHED)]
    began_s = time.perf_counter()
    graph = deep(int(key))
    made_s = time.perf_counter() - began_s
    plain = simulate(graph, keep_all_schedule(graph))
    found = ours(graph, BUDGET_B, K40, work=WORK, limit_s=effort.limit_s)
    state_B = sum(v.size_B for v in graph.values if v.persistent and v.movable)
    say(f"{key}: {found.status}, {found.seconds:.1f} s")
    deep.cache_clear()
    return [{
        "layers": int(key), "operators": len(graph.program), "state_B": state_B, "plain_B": plain.peak_B,
        "plain_s": plain.time_s, "device_floor_B": floor_B(graph, persistent_may_move=False), "floor_B": floor_B(graph),
        "made_s": made_s, "plan": found.as_data(),
    }]  # fmt: skip


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, KEYS[:-1])
    if not rows:
        return []
    note = (
        f"n1 = 6, n2 = 32, n4 = 6, {BATCH} images of 224 x 224, {BUDGET_B // 10**9} GB, a K40's seconds by roofline, the "
        "host without limit over PCIe 3 x16 (12 GB/s each way). Weights, gradients and momentum count; weights and momentum "
        "may live on the host. Basic layers: convolution, normalisation, activation and sum each count. Overhead over "
        f"keeping everything, which would need the keep-all peak. {WORK:,} units of work, and a limit by the clock (unsolved: it passed, at the seconds shown, before there was a plan). Seconds by the clock are those of a "
        "machine that others used as well; beside them what planning took of a processor."
    )
    fits = [r["layers"] for r in rows if r["plan"]["time_s"] is not None]
    published = ", ".join(f"{name} {layers}" for name, layers in PUBLISHED.items())
    deepest = f"Deepest planned here: {max(fits, default=0)} weighted layers. "
    beside = (
        f"{deepest}Published for 12 GB and {BATCH} images, executed on a K40c, as we know them from second hand and "
        f"unverified: {published}.\n"
    )
    return [table("Depth", _COLUMNS, [_cells(r) for r in rows], len(rows), note), beside]


def _cells(row: Row) -> list[object]:
    plan = row["plan"]
    planned = plan["time_s"] is not None
    return [
        row["layers"],
        4 * (row["layers"] - 2) + 4,
        row["operators"],
        format_B(row["state_B"]),
        format_B(row["plain_B"]),
        format_B(row["device_floor_B"]),
        format_B(row["floor_B"]),
        plan["status"],
        format_B(plan["peak_B"]) if planned else "none",
        format_B(plan["host_B"]) if planned else "none",
        plan["hosted"] if planned else "none",
        percent(plan["time_s"] / row["plain_s"] - 1.0) if planned else "no plan",
        percent(plan["bound_s"] / row["plain_s"] - 1.0) if planned else "none",
        f"{row['made_s']:.1f}",
        f"{plan['seconds']:.1f}",
        f"{plan['processor_s']:.1f}",
    ]


DEPTH_PART = Part("depth", KEYS, _measure, _tables)
