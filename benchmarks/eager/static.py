"""Planned ahead beside decided as it runs, on networks that can be captured: the price of not knowing the future."""

from __future__ import annotations

import json

from benchmarks.eager.networks import CAPTURED
from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of
from benchmarks.results_file import table
from benchmarks.runner import answer_of
from lowtide.units import format_B

SHARES = (0.7, 0.5)
MOST_s = 10.0  # of planning, per budget
_COLUMNS = ("network", "of the peak", "budget", "variant", "recomputed", "measured")


def _measure(name: str, effort: Effort) -> list[Row]:
    shares = SHARES[:1] if effort.quick else SHARES
    rounds = 3 if effort.quick else min(5, effort.rounds)
    return list(answer_of("_eager_static_run", name, json.dumps(shares), rounds, min(MOST_s, effort.limit_s)))


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, CAPTURED)
    if not rows:
        return []
    note = (
        "Equal budgets, weights, gradients and the optimizer's state included; one thread. Planned: `lowtide.fit`, which has captured the "
        "step; its second row may recompute and choose no other implementations. The others: `lowtide.eager` by its policy. "
        "Recomputed: what the plan predicts over keeping everything, seconds measured beforehand; of `eager`, modelled cost of "
        "reruns over that of first runs. Measured: a step over one of the same frontend without a limit, interleaved for plans; "
        "one after the other for `eager`, whose contexts do not nest, on a machine that does other work as well."
    )
    return [table("The price of not knowing the future", _COLUMNS, [_cells(r) for r in rows], len(rows), note)]


def _cells(row: Row) -> list[object]:
    head = [row["network"], f"{row['share']:.0%}", format_B(row["budget_B"]), row["variant"]]
    if row["refused"]:
        return [*head, "no plan" if row["variant"].startswith("planned") else "no room", "-"]
    return [*head, percent(row["recomputed"]), percent(row["measured"])]


STATIC_PART = Part("static", CAPTURED, _measure, _tables)
