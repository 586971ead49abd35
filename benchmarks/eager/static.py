"""Planned ahead beside decided as it runs, on networks that can be captured: the price of not knowing the future."""

from __future__ import annotations

import statistics
from typing import Any

import lowtide
from benchmarks.eager.networks import CAPTURED, NETWORKS
from benchmarks.eager.running import UNLIMITED_B, Loop, peak_B, prepare, recomputed
from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of
from benchmarks.results_file import table
from benchmarks.runner import answer_of
from benchmarks.stopwatch import interleave, ratio
from lowtide.device.heap import keep_warm
from lowtide.units import format_B

ONLINE = ("coop", "tide", "tide-memory")
IMPLEMENTATIONS = ("in-place", "saved values", "algorithms", "loss", "fusion")
SHARES = (0.7, 0.5)
MOST_s = 10.0  # of planning, per budget
_COLUMNS = ("network", "of the peak", "budget", "variant", "recomputed", "measured")


class Planned:
    """A network inside `lowtide.fit`, and one batch.

    Raises:
        InfeasibleBudget: if there is no plan.
    """

    def __init__(self, name: str, budget_B: int, limit_s: float, **menu: Any) -> None:
        network = NETWORKS[name]
        self.step_of = network.step
        self.model, self.optimizers = network.start()
        lowtide.fit(self.model, budget_B, optimizer=self.optimizers[0], time_limit_s=limit_s, **menu)
        self.batch = next(network.batches(1))
        self.step()
        self.step()

    def step(self) -> None:
        """A whole training step."""
        self.step_of(self.model, self.optimizers, self.batch)

    @property
    def overhead(self) -> float:
        """That the plan predicts for forward and backward."""
        plan = self.model.lowtide.plan  # type: ignore[union-attr]
        assert plan is not None
        return float(plan.overhead)


def beside(name: str, shares: list[float], rounds: int, limit_s: float) -> list[dict[str, Any]]:
    """The rows of a network, in a process of its own."""
    prepare()
    network = NETWORKS[name]
    loop_B = peak_B(network)
    keep_warm()
    kept = Planned(name, UNLIMITED_B, limit_s)
    online_kept = Loop(network, "tide", UNLIMITED_B, rounds + 2).run()
    rows = []
    for share in shares:
        budget_B = int(loop_B * share)
        for variant, menu in {"planned": {}, "planned, recomputation alone": {"without": IMPLEMENTATIONS}}.items():
            row: dict[str, Any] = {"network": name, "share": share, "budget_B": budget_B, "variant": variant}
            try:
                planned = Planned(name, budget_B, limit_s, **menu)
            except lowtide.InfeasibleBudget as error:
                rows.append(row | {"refused": str(error).splitlines()[0]})
                continue
            times = interleave({"kept": lambda: kept.step, "planned": lambda p=planned: p.step}, rounds)  # type: ignore[misc]
            rows.append(
                row
                | {
                    "refused": None,
                    "recomputed": planned.overhead,
                    "measured": ratio(times["planned"], times["kept"]) - 1,
                }
            )
            del planned
        for policy in ONLINE:
            found = Loop(network, policy, budget_B, rounds + 2).run()
            row = {
                "network": name,
                "share": share,
                "budget_B": budget_B,
                "variant": policy,
                "refused": found["refused"],
            }
            if not found["refused"]:
                inside_s = statistics.median(found["seconds_s"][2:])
                row |= {
                    "recomputed": recomputed(found),
                    "measured": inside_s / statistics.median(online_kept["seconds_s"][2:]) - 1,
                }
            rows.append(row)
    return rows


def _measure(name: str, effort: Effort) -> list[Row]:
    shares = SHARES[:1] if effort.quick else SHARES
    rounds = 3 if effort.quick else min(5, effort.rounds)
    return list(answer_of(beside, name, shares, rounds, min(MOST_s, effort.limit_s)))


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
