"""What does `lowtide.eager` cost an operator when there is room for everything? The engine beside plain torch.

`python -m benchmarks.eager.eager_speed` writes `results/eager_speed.md` and `.json`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.results_file import table, write
from lowtide.api.eager import Eager
from lowtide.device.arena import Arena
from lowtide.eager_engine.runtime import EagerRuntime

RESULTS = "eager_speed"
BUDGET_B = 2**28
ROUNDS = 40
POLICIES = ("lru", "coop", "tide", "tide-memory")
NOTE = (
    "Microseconds of processor time of one operator, one thread, no pressure: the fastest of forty rounds. *Adds*: "
    "2,000 additions of eight numbers without gradients. *Chain*: 300 products of 64 numbers and their backward, which "
    "keeps every result; time by operators that the runtime sees. *Arena* is plain torch served from the arena."
)


def adds() -> int:
    x, y = torch.ones(8), torch.ones(8)
    with torch.no_grad():
        for _ in range(2000):
            torch.add(x, y)
    return 2000


def chain() -> int:
    x = torch.ones(64, requires_grad=True)
    z = x
    for _ in range(300):
        z = z * x
    z.sum().backward()  # type: ignore[no-untyped-call]
    return 4 * 300


def fastest_us(work: Callable[[], int]) -> float:
    """Processor time of one operator."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        count = work()
        best = min(best, (time.thread_time() - start) / count)
    return best * 1e6


def main(arguments: list[str] | None = None) -> int:
    """Measures and writes."""
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
    torch.set_num_threads(1)
    numbers: list[dict[str, Any]] = []
    rows = []
    for work in (adds, chain):
        plain_us = fastest_us(work)
        with Arena(BUDGET_B, small_zone_B=0, persistent_B=0).engaged():
            arena_us = fastest_us(work)
        for policy in POLICIES:
            with Eager(EagerRuntime(BUDGET_B, policy), [], []):
                eager_us = fastest_us(work)
            facts = {"loop": work.__name__, "policy": policy, "plain_us": plain_us, "arena_us": arena_us}
            numbers.append(facts | {"eager_us": eager_us, "added_us": eager_us - plain_us})
            rows.append(
                [work.__name__, policy, *(f"{us:.2f}" for us in (plain_us, arena_us, eager_us, eager_us - plain_us))]
            )
    columns = ["loop", "policy", "plain, us", "arena, us", "eager, us", "added, us"]
    tables = [table("One operator, without pressure", columns, rows, 2 * len(POLICIES), NOTE)]
    path = write(RESULTS, "The price of an operator inside lowtide.eager", tables, numbers)
    print(path.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
