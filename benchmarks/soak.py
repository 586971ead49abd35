"""Three hundred steps inside the wall and without it, in processes of their own: the same bits, and nothing drifts.

`python -m benchmarks.soak [--steps N] [--only NAME ...]` writes `results/soak.md` and `.json`, and before the first step of
each soak its prediction into `results/soak_predictions.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import lowtide
from benchmarks._soak_run import OPTIMIZERS, batches
from benchmarks.networks import SUBJECTS
from benchmarks.results_file import FOLDER, fresh_profiles, table, write

NETWORKS = ("gpt2", "resnet50")
ALPHA = 0.25


def run(name: str, kind: str, side: str, steps: int, plan: Path) -> dict[str, Any]:
    """One side of one soak."""
    command = [sys.executable, "-m", "benchmarks._soak_run", name, kind, side, str(steps), str(plan)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def predict(name: str, kind: str, file: Path) -> dict[str, Any]:
    """Plans at alpha between the smallest enforced budget and keep-all, before any step, and says what will be seen."""
    subject = SUBJECTS[name]
    model = subject.build()
    optimizer = OPTIMIZERS[kind](model.parameters())
    batch = next(batches(subject, 1))
    plain = lowtide.plan(model, kwargs=batch, budget=2**50, optimizer=optimizer)
    budget_B = int(plain.floor_B + ALPHA * (plain.reserved_B - plain.floor_B))
    plan = lowtide.plan(model, kwargs=batch, budget=budget_B, optimizer=optimizer)
    plan.save(file)
    record = plan.record
    assert record.layout is not None, "the soak needs an enforced budget: a C++ compiler"
    return {
        "budget_B": budget_B, "keep_all_B": plain.reserved_B, "reserved_B": plan.reserved_B, "peak_B": plan.peak_B,
        "persistent_B": record.fixed_B - record.reserve_B, "overhead": plan.overhead, "gap": plan.gap,
    }  # fmt: skip


def drift(values: list[float]) -> float:
    """Median of the last quarter over the median of the second one: warm-up apart, and nothing else."""
    quarter = max(1, len(values) // 4)
    return statistics.median(values[-quarter:]) / statistics.median(values[quarter : 2 * quarter])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    options = parser.parse_args()
    torch.set_num_threads(2)
    fresh_profiles()
    rows: list[list[object]] = []
    steady: list[list[object]] = []
    numbers: dict[str, Any] = {}
    failed = False
    for name in options.only:
        for kind in OPTIMIZERS:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "plan.json"
                said = predict(name, kind, file)
                numbers[f"{name} {kind}"] = {"predicted": said}
                (FOLDER / "soak_predictions.json").write_text(json.dumps(numbers, indent=1))
                print(f"{name} {kind}: predicted {said['reserved_B']:,} B of {said['budget_B']:,} B", flush=True)
                plain = run(name, kind, "plain", options.steps, file)
                wall = run(name, kind, "wall", options.steps, file)
            stats = wall["stats"]
            numbers[f"{name} {kind}"] |= {"stats": stats, "departures": wall["departures"]}
            same = sum(a == b for a, b in zip(plain["digests"], wall["digests"], strict=True))
            equal = same == len(plain["digests"])
            most_B = max(wall["reserved_B"])
            error = (most_B - said["reserved_B"]) / (said["reserved_B"] - said["persistent_B"])
            failed |= not equal or most_B > said["budget_B"]
            normal = [s for s, k in zip(wall["seconds_s"], wall["kinds"], strict=True) if k == "normal"]
            plainly = [s for s, k in zip(plain["seconds_s"], plain["kinds"], strict=True) if k == "normal"]
            hits = stats["planned_hits"] / max(1, stats["planned_hits"] + stats["departures"])
            rows.append([
                name, kind, options.steps, "equal" if equal else f"DIFFERENT ({same} of {len(plain['digests'])})",
                f"{said['budget_B'] / 1e6:.1f}", f"{said['reserved_B'] / 1e6:.1f}", f"{most_B / 1e6:.1f}", f"{error:+.2%}",
                f"{hits:.4%}", stats["departures"], f"{statistics.median(normal) / statistics.median(plainly):.2f}",
            ])  # fmt: skip
            warm = len(wall["rss_B"]) // 4
            steady.append([
                name, kind, len(set(wall["reserved_B"][warm:])), len(set(wall["addresses"][warm:])),
                f"{drift(normal):.3f} ({drift(plainly):.3f})",
                f"{(wall['rss_B'][-1] - wall['rss_B'][warm]) / 1e6:+.1f} ({(plain['rss_B'][-1] - plain['rss_B'][warm]) / 1e6:+.1f})",
            ])  # fmt: skip
            print(rows[-1], steady[-1], flush=True)
    expected = len(options.only) * len(OPTIMIZERS)
    tables = [
        table(
            "Soak", ["network", "optimizer", "steps", "bits", "budget MB", "predicted reserved MB", "most reserved MB",
            "error over (reserved - persistent)", "planned hits", "departures", "time over plain"], rows, expected,
            "Evaluation every 50 steps, short batches, a second size, logging, an exception in one backward, a checkpoint "
            f"saved and resumed; alpha {ALPHA}.",
        ),
        table(
            "Drift after the first quarter", ["network", "optimizer", "different reserved bytes", "different address sets at the end of a step",
            "step time, last over second quarter (plain)", "RSS growth MB (plain)"], steady, expected,
        ),
    ]  # fmt: skip
    path = write("soak", "Soak: a training loop inside the wall", tables, numbers)
    print(path.read_text())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
