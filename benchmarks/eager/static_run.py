"""One network that can be captured, in a process of its own: planned ahead beside decided as it runs, at equal budgets.

Prints one JSON list of rows. `python -m benchmarks.eager.static_run NAME SHARES ROUNDS LIMIT`, SHARES a JSON list of shares of
the most that the loop holds without a limit.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from typing import Any

import torch
from tests import torchvision_shim

torchvision_shim.install()

import lowtide  # noqa: E402
from benchmarks.eager.networks import NETWORKS  # noqa: E402
from benchmarks.eager.running import UNLIMITED_B, Loop, peak_B, recomputed  # noqa: E402
from benchmarks.stopwatch import interleave, ratio  # noqa: E402
from lowtide.device.heap import keep_warm  # noqa: E402

ONLINE = ("coop", "tide", "tide-memory")
IMPLEMENTATIONS = ("in-place", "saved values", "algorithms", "loss", "fusion")


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


def run(name: str, shares: list[float], rounds: int, limit_s: float) -> list[dict[str, Any]]:
    """The rows of a network."""
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


def main(arguments: list[str]) -> int:
    """Runs and prints."""
    name, shares, rounds, limit_s = arguments
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", lowtide.BudgetWarning)
    sys.stdout.write(json.dumps(run(name, json.loads(shares), int(rounds), float(limit_s))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
