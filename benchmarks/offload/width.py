"""How wide a network can be: the largest batch within 12 GB, planned with costs for an old card and a new one."""

from __future__ import annotations

from benchmarks.offload.networks import K40, NETWORKS, machine, network
from benchmarks.offload.rows import floor_B, largest, linked, ours
from benchmarks.offload.steps import with_momentum
from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of, say
from benchmarks.results_file import table
from lowtide.ir.graph import Graph
from lowtide.ir.machine import Machine
from lowtide.ir.simulate import simulate
from lowtide.planners.classic.superneurons import stage_peaks
from lowtide.planners.keep_all import keep_all_schedule

BUDGET_B = 12 * 10**9
CARDS = (K40.name, "rtx4090")
RATES_Bps = {K40.name: 12e9, "rtx4090": 25e9}
PUBLISHED = {
    "alexnet": (768, 768, 1024, 1408, 1792),
    "vgg16": (48, 64, 48, 80, 224),
    "inception_v4": (16, None, None, 64, 240),
    "resnet50": (24, 80, 32, 128, 384),
    "resnet101": (16, 48, 16, 80, 256),
    "resnet152": (16, 32, 16, 48, 176),
}
"""Of Caffe, MXNet, Torch, TensorFlow and SuperNeurons."""
SEARCH_WORK, WORK = 20_000, 200_000
_STEP = 16
_MOST = 1 << 14
KEYS = tuple(f"{name} {card}" for name in NETWORKS for card in CARDS)
_COLUMNS = (
    "network", "card", "Caffe", "MXNet", "Torch", "TensorFlow", "SuperNeurons", "keep-all", "its stages, here",
    "recompute only", "ours", "proved most", "over SuperNeurons", "over keep-all", "overhead", "bound", "images/s", "at keep-all's batch",
)  # fmt: skip


def _link(card: str) -> Machine:
    return linked(RATES_Bps[card])


def _step(name: str, batch: int, card: str) -> Graph:
    return with_momentum(network(name, batch, card), machine(card))


def _measure(key: str, effort: Effort) -> list[Row]:
    name, card = key.split()

    def plain_B(batch: int) -> int:
        graph = _step(name, batch, card)
        return simulate(graph, keep_all_schedule(graph)).peak_B

    def stages_B(batch: int) -> int:
        peaks = stage_peaks(_step(name, batch, card))
        return min(peaks.pool_B, peaks.recomputation_B, peaks.cache_B)

    def planned(batch: int, link: Machine | None) -> bool:
        found = ours(_step(name, batch, card), BUDGET_B, link, work=SEARCH_WORK, limit_s=effort.limit_s)
        say(f"{key} {batch}: {found.status}, {found.seconds:.1f} s")
        return found.time_s is not None

    most = largest(lambda b: floor_B(_step(name, b, card)) <= BUDGET_B, _MOST, _STEP)
    kept = largest(lambda b: plain_B(b) <= BUDGET_B, most, _STEP)
    stages = largest(lambda b: stages_B(b) <= BUDGET_B, most, _STEP)
    recompute = largest(lambda b: planned(b, None), most, _STEP)
    widest = most if planned(most, _link(card)) else largest(lambda b: planned(b, _link(card)), most - _STEP, _STEP)
    row: Row = {"network": name, "card": card, "most": most, "kept": kept, "stages": stages, "recompute": recompute}
    row |= {"widest": widest, "kept_s": None, "plain_s": None, "plan": None}
    if kept:
        graph = _step(name, kept, card)
        row["kept_s"] = simulate(graph, keep_all_schedule(graph)).time_s
    if widest:
        graph = _step(name, widest, card)
        row["plain_s"] = simulate(graph, keep_all_schedule(graph)).time_s
        row["plan"] = ours(graph, BUDGET_B, _link(card), work=WORK, limit_s=effort.limit_s).as_data()
    network.cache_clear()
    return [row]


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, KEYS)
    if not rows:
        return []
    rates = ", ".join(f"{rate / 1e9:g} GB/s for {card}" for card, rate in RATES_Bps.items())
    note = (
        f"The largest batch, in steps of {_STEP}, of a whole step within {BUDGET_B // 10**9} GB: weights, gradients and "
        f"momentum count. The first five columns are published for a K40c of 12 GB; we know them from second hand, and they "
        "are unverified. Their networks are not ours to the last layer (the AlexNet here is torchvision's, with one tower), "
        "and cuDNN's workspaces are not in a roofline, so the ratio over keep-all says more. Keep-all: plain PyTorch's operators, freeing what is not needed. Its stages, here: SuperNeurons' "
        "stages as this repository builds them, the lowest of them. Ours: default planner, moving allowed, weights and "
        f"momentum too; links {rates}, a card's seconds by roofline. Proved most: the largest batch whose floor fits. "
        f"{SEARCH_WORK:,} units of work per trial, {WORK:,} for the plan that is shown. Overhead: of that plan over "
        "keeping everything at the same batch, which would not fit."
    )
    return [table("Width", _COLUMNS, [_cells(r) for r in rows], len(rows), note)]


def _cells(row: Row) -> list[object]:
    published = PUBLISHED[row["network"]]
    plan, plain_s = row["plan"], row["plain_s"]
    planned = plan is not None and plan["time_s"] is not None
    return [
        row["network"],
        row["card"],
        *("n/a" if n is None else n for n in published),
        row["kept"],
        row["stages"],
        row["recompute"],
        row["widest"],
        row["most"],
        f"{row['widest'] / (published[-1] or 1):.2f}",
        f"{row['widest'] / row['kept']:.2f}" if row["kept"] else "none",
        percent(plan["time_s"] / plain_s - 1.0) if planned else "no plan",
        percent(plan["bound_s"] / plain_s - 1.0) if planned else "none",
        f"{row['widest'] / plan['time_s']:.0f}" if planned else "none",
        f"{row['kept'] / row['kept_s']:.0f}" if row["kept"] else "none",
    ]


WIDTH_PART = Part("width", KEYS, _measure, _tables)
