"""One training loop inside `lowtide.eager`, and what it was: bits, seconds, recomputation; its peak; the trace of a step.

Units: `_B` bytes, `_s` seconds, `_ns` modelled nanoseconds.
"""

from __future__ import annotations

import gc
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from tests.eager_engine.comparison import Left, everything
from tests.eager_engine.networks import EagerNetwork

import lowtide
from benchmarks.eager.networks import NETWORKS
from benchmarks.runner import Limits

UNLIMITED_B = 8 * 2**30
MOVE_ns_PER_B = 0.2
"""A moved byte is read and written once, at the 10 GB/s of the modelled costs."""
LIMITS = Limits(elapsed_s=240.0)
"""Of a process that may be refused again and again."""
RECORDED = 3
"""Steps before the one that is recorded, so that the optimizer has its state."""
POLICIES = ("dtr", "dte", "coop", "tide", "tide-memory")
"""Of the tables that execute."""


@dataclass(frozen=True)
class Loop:
    """A loop to run.

    Arguments:
        digests: whether everything is read, bit by bit, after every step.
    """

    network: EagerNetwork
    policy: str
    budget_B: int
    steps: int
    digests: bool = False

    def run(self) -> dict[str, Any]:
        """Trains from the seeds.

        Returns: `refused`, the first line of the error that ended it or None; and of the steps that ended: `losses`,
            `seconds_s`, `counts` (statistics after each of them), `left` (digests, where they were asked for).
        """
        module, optimizers = self.network.start()
        found: dict[str, Any] = {"refused": None, "losses": [], "seconds_s": [], "counts": [], "left": []}
        context = lowtide.eager(self.budget_B, policy=self.policy, model=module, optimizer=optimizers)
        try:
            with context as run:
                for batch in self.network.batches(self.steps):
                    start = time.perf_counter()
                    loss = self.network.step(module, optimizers, batch).item()
                    found["seconds_s"].append(time.perf_counter() - start)
                    found["losses"].append(loss)
                    found["counts"].append(msgspec.to_builtins(run.stats()))
                    if self.digests:
                        found["left"].append({"loss": loss.hex()} | everything(module, optimizers))
            if self.digests:
                found["left"].append({"loss": loss.hex()} | everything(module, optimizers))
        except (torch.OutOfMemoryError, lowtide.LowtideError) as error:
            found["refused"] = f"{type(error).__name__}: {error}".splitlines()[0]
        del module, optimizers, context
        gc.collect()
        return found


def peak_B(network: EagerNetwork, steps: int = 3) -> int:
    """The most bytes that the loop holds when nothing is evicted, what persists included.

    Raises:
        RuntimeError: if it was refused.
    """
    found = Loop(network, "lru", UNLIMITED_B, steps).run()
    if found["refused"]:
        raise RuntimeError(found["refused"])
    return int(found["counts"][-1]["peak_B"])


def left(found: dict[str, Any]) -> Left:
    """Digests and losses, to be compared."""
    return Left(tuple(found["left"]), tuple(found["losses"]))


def moved(found: dict[str, Any], first: int = 2) -> float:
    """Modelled cost of moving blocks together over that of first runs, from a step on."""
    before, last = found["counts"][first - 1], found["counts"][-1]
    return float((last["moved_B"] - before["moved_B"]) * MOVE_ns_PER_B / (last["cost_ns"] - before["cost_ns"]))


def recomputed(found: dict[str, Any], first: int = 2) -> float:
    """Modelled cost of reruns over that of first runs, from a step on."""
    counts = found["counts"]
    before = counts[first - 1] if first else {"recompute_ns": 0, "cost_ns": 0}
    return float((counts[-1]["recompute_ns"] - before["recompute_ns"]) / (counts[-1]["cost_ns"] - before["cost_ns"]))


def prepare() -> None:
    """One thread, and no warnings of budgets that are meant to be small: as every loop of the tables runs, in its own process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", lowtide.BudgetWarning)


def peak_of(name: str) -> int:
    """The peak of one of the networks, in a process of its own."""
    prepare()
    return peak_B(NETWORKS[name])


def record(network: EagerNetwork, file: Path) -> None:
    """Writes the trace of one step, the fourth one."""
    module, optimizers = network.start()
    for number, batch in enumerate(network.batches(RECORDED + 1)):
        if number < RECORDED:
            network.step(module, optimizers, batch)
            continue
        with lowtide.eager(UNLIMITED_B, policy="lru", model=module, optimizer=optimizers, record=file):
            network.step(module, optimizers, batch)


def record_of(name: str, file: str) -> None:
    """Records one of the networks, in a process of its own."""
    prepare()
    record(NETWORKS[name], Path(file))
