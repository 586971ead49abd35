"""One side of a soak of `lowtide.eager` in a process of its own. Prints one JSON value.

`python -m benchmarks.eager.soak_run NAME STEPS [BUDGET POLICY]`: plainly, or inside a budget.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
import warnings
from typing import Any

import torch
from tests import torchvision_shim
from tests.eager_engine.comparison import everything

torchvision_shim.install()

import lowtide  # noqa: E402
from benchmarks.eager.networks import NETWORKS  # noqa: E402

EVERY = 25
"""Steps between two looks at every bit."""
EVALUATE = 50
"""Steps between two evaluations."""


def rss_B() -> int:
    """Resident bytes of this process now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def soak(name: str, steps: int, budget_B: int | None, policy: str) -> dict[str, Any]:
    """Trains, and writes down what was seen."""
    network = NETWORKS[name]
    module, optimizers = network.start()
    seen: dict[str, Any] = {"losses": [], "seconds_s": [], "rss_B": [], "left": [], "held_B": []}
    inside = (
        contextlib.nullcontext()
        if budget_B is None
        else lowtide.eager(budget_B, policy=policy, model=module, optimizer=optimizers)
    )
    with inside as run:
        for number, batch in enumerate(network.batches(steps)):
            start = time.perf_counter()
            seen["losses"].append(network.step(module, optimizers, batch).item().hex())
            seen["seconds_s"].append(time.perf_counter() - start)
            if number % EVALUATE == EVALUATE - 1:
                module.eval()
                with torch.no_grad():
                    seen["losses"].append(module(*batch).item().hex())
                module.train()
            if number % EVERY == EVERY - 1:
                seen["left"].append(everything(module, optimizers))
            seen["rss_B"].append(rss_B())
            if budget_B is not None:
                seen["held_B"].append(run.stats().peak_B)
    seen["left"].append(everything(module, optimizers))
    if budget_B is not None:
        seen["stats"] = {field: getattr(run.stats(), field) for field in run.stats().__struct_fields__}
    return seen


def main(arguments: list[str]) -> int:
    """Runs and prints."""
    name, steps, *limit = arguments
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", lowtide.BudgetWarning)
    found = soak(name, int(steps), int(limit[0]) if limit else None, limit[1] if limit else "")
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
