"""A frontier made by hand."""

from __future__ import annotations

from typing import Any

from lowtide.ir.frontier import Baseline, FrontierRecord, Point
from lowtide.ir.plan import Covers, Environment

MiB = 2**20


def point(budget_MiB: int, overhead: float | None, bound: float, **facts: Any) -> Point:
    """A point over a second of keeping everything."""
    if overhead is None:
        return Point(
            budget_B=budget_MiB * MiB, status="UNSOLVED", bound_s=1.0 + bound, bound_overhead=bound,
            reason="No plan was found.", **facts,
        )  # fmt: skip
    gap = (1.0 + overhead) / (1.0 + bound) - 1.0
    return Point(
        budget_B=budget_MiB * MiB, status="FEASIBLE", bound_s=1.0 + bound, bound_overhead=bound,
        reserved_B=budget_MiB * MiB, time_s=1.0 + overhead, overhead=overhead, gap=gap, winner="annealing", **facts,
    )  # fmt: skip


def frontier_record(**facts: Any) -> FrontierRecord:
    """Five budgets, the lowest without a plan, and three other methods."""
    given: dict[str, Any] = {
        "name": "tiny <net>",
        "key": "0123",
        "floor_B": 30 * MiB,
        "smallest_B": 40 * MiB,
        "keep_all_B": 100 * MiB,
        "keep_all_s": 1.0,
        "points": (
            point(100, 0.0, 0.0), point(80, 0.05, 0.04), point(60, 0.15, 0.12), point(40, 0.4, 0.3),
            point(32, None, 0.5),
        ),
        "baselines": (
            Baseline(name="chen-sqrt", points=(point(62, 0.3, 0.0), point(55, 0.33, 0.0))),
            Baseline(name="superneurons-cost", points=(point(90, 0.12, 0.0),)),
            Baseline(name="revolve", reason="the forward is not a chain"),
        ),
        "floor_class": "any recomputation",
        "floor_operators": ("aten.mm.default (model.py:10)",),
        "fixed_B": 3 * MiB,
        "bound_class": "any recomputation",
        "planner": "portfolio",
        "work": 1000,
        "covers": Covers(("parameters", "activations"), ("the driver",)),
        "environment": Environment("2.13.0", "cpu", 2, "0.1.0"),
    }  # fmt: skip
    return FrontierRecord(**{**given, **facts})
