"""Choosing what to keep, recompute and move together, against either alone and against static policies, in simulation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from benchmarks.offload.rows import Result, floor_B, linked, ours, ours_once, result
from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of, say
from benchmarks.problem_set import load
from benchmarks.results_file import table
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Problem
from lowtide.ir.simulate import simulate
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.classic.chen import CheckpointAll
from lowtide.planners.classic.static_offload import CheckpointOffload, ConvolutionOffload, SavedOffload, TensorCache
from lowtide.planners.classic.superneurons import SuperNeurons
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.units import format_B

NETWORKS = ("resnet50", "vgg16", "unet", "gpt2_medium", "bert_large")
RATES_GBps = (4, 12, 25, 50, 450)
PERCENTS = (50, 33, 25, 15)
WORK = 300_000
STATIC: tuple[AbstractPlanner, ...] = (
    SuperNeurons(), ConvolutionOffload(), TensorCache(), SavedOffload(), CheckpointOffload(), CheckpointAll(),
)  # fmt: skip
KEYS = tuple(f"{name} {p} %" for name in NETWORKS for p in PERCENTS)
_COLUMNS = (
    "network", "budget", "% of plain", "link GB/s", "joint", "bound", "gap", "recompute only", "move only", "superneurons",
    "offload convolutions", "tensor cache", "offload saved", "offload checkpoints", "checkpoint all", "on the host", "seconds",
)  # fmt: skip


@cache
def _kept(name: str) -> tuple[Graph, int, float]:
    graph = load(name)
    plain = simulate(graph, keep_all_schedule(graph))
    return graph, plain.peak_B, plain.time_s


def _measure(key: str, effort: Effort) -> list[Row]:
    name, share, _ = key.split()
    graph, plain_B, plain_s = _kept(name)
    budget_B = plain_B * int(share) // 100
    least_B = floor_B(graph)
    row: Row = {"network": name, "percent": int(share), "budget_B": budget_B, "plain_s": plain_s, "floor_B": least_B}
    if least_B > budget_B:
        return [row | {"rate": None, "impossible": True}]
    recompute = ours(graph, budget_B, None, work=WORK, limit_s=effort.limit_s)
    rows = []
    for rate in RATES_GBps[:1] if effort.quick else RATES_GBps:
        machine = linked(rate * 1e9)
        joint = ours(graph, budget_B, machine, work=WORK, limit_s=effort.limit_s)
        move = ours_once(graph, budget_B, machine, work=WORK, limit_s=effort.limit_s)
        problem = Problem(graph, budget_B, machine=machine, host_budget_B=None)
        static = {p.name: result(p, problem).as_data() for p in STATIC}
        say(f"{key} {rate} GB/s: {percent(_overhead(joint.time_s, plain_s))}, {joint.seconds:.1f} s")
        plans = {"joint": joint, "recompute": recompute, "move": move}
        rows.append(row | {"rate": rate} | {k: r.as_data() for k, r in plans.items()} | {"static": static})
    return rows


def _overhead(time_s: float | None, plain_s: float) -> float | None:
    return None if time_s is None else time_s / plain_s - 1.0


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, KEYS)
    if not rows:
        return []
    note = (
        "Overheads over keeping everything, simulated; weights stay on the device, gradients are handed over at the end. "
        f"Joint, recompute only and move only are the default planner with {WORK:,} units of work; move only may run nothing "
        "twice. Joint tries both with all of their work where a bound does not say that they lose, so it is no slower than either, "
        "but for the 0.1 % of the step at which a search stops. The rest are static policies within the same budget (`planners/classic/`), superneurons with all its "
        "stages. Bound and gap are those of the joint plan. no plan: the method has none in these bytes. Seconds: of the "
        "joint plan."
    )
    return [
        table("Joint choice", _COLUMNS, [_cells(r) for r in rows], len(rows), note),
        _summary([r for r in rows if r["rate"] is not None]),
    ]


def _cells(row: Row) -> list[object]:
    head = [row["network"], format_B(row["budget_B"]), f"{row['percent']} %"]
    if row["rate"] is None:
        return [*head, "any", f"proved impossible: floor {format_B(row['floor_B'])}", *["none"] * (len(_COLUMNS) - 5)]
    plain_s = row["plain_s"]
    joint = Result(**row["joint"])
    bound = joint.bound_s / plain_s - 1.0
    gap = None if joint.time_s is None else max(0.0, joint.time_s / joint.bound_s - 1.0)
    others = (row["recompute"], row["move"], *(row["static"][p.name] for p in STATIC))
    return [
        *head,
        row["rate"],
        percent(_overhead(joint.time_s, plain_s)),
        percent(bound),
        percent(gap, "none"),
        *(percent(_overhead(o["time_s"], plain_s)) for o in others),
        "none" if joint.host_B is None else format_B(joint.host_B),
        f"{joint.seconds:.1f}",
    ]


def _summary(rows: list[Row]) -> str:
    """Per rate, where the joint plan stands."""
    lines = []
    for rate in RATES_GBps:
        there = [r for r in rows if r["rate"] == rate and r["joint"]["time_s"] is not None]
        if not there:
            continue
        lines.append([
            rate,
            len(there),
            _better(there, lambda r: r["recompute"]["time_s"]),
            _better(there, lambda r: r["move"]["time_s"]),
            _better(there, lambda r: min((s["time_s"] for s in r["static"].values() if s["time_s"]), default=None)),
            percent(_median([max(0.0, r["joint"]["time_s"] / r["joint"]["bound_s"] - 1.0) for r in there])),
        ])  # fmt: skip
    columns = (
        "link GB/s", "plans", "recompute only: mean time saved, worst", "move only: mean time saved, worst",
        "best static policy: mean time saved, worst", "median gap",
    )  # fmt: skip
    note = (
        "Of the step's time that the other has, the part that the joint plan saves, where both have a plan; worst: the least "
        "of them. In front, how many budgets the other has no plan for."
    )
    return table("Joint choice, per link", columns, lines, len(lines), note)


def _better(rows: list[Row], other_s: Callable[[Row], float | None]) -> str:
    pairs = [(r["joint"]["time_s"], other_s(r)) for r in rows]
    saved = [1.0 - a / b for a, b in pairs if b]
    none = f"{len(pairs) - len(saved)} without; "
    return none + (f"{sum(saved) / len(saved):.1%}, {min(saved):.1%}" if saved else "none")


def _median(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]


JOINT_PART = Part("joint", KEYS, _measure, _tables)
