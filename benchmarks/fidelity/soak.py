"""Three hundred steps inside a hard budget and without one, in processes of their own: the same bits, and nothing drifts.

`python -m benchmarks.fidelity.soak [--steps N] [--only NAME ...] [--optimizers ...]` writes `results/soak.md` and `.json`, and before the first step of
each soak its prediction into `results/soak_predictions.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lowtide
from benchmarks.networks import SUBJECTS, Subject, loss_in
from benchmarks.results_file import FOLDER, fresh_profiles, read_numbers, table, write
from benchmarks.runner import answer_of

RESULTS = "soak"
NETWORKS = ("gpt2", "resnet50")
ALPHA = 0.25


EVALUATE = 50  # steps between evaluations
SHORT = 10  # steps between short batches, as the last one of an epoch is
OTHER = 15  # steps between batches of the other length or size
THROW, SAVE, RESUME = 0.4, 0.5, 0.6  # when something goes wrong, is saved, is resumed, as parts of the run

OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
}


class Stumble(Exception):
    """What goes wrong in the middle of one step."""


def batches(subject: Subject, steps: int) -> Iterator[dict[str, torch.Tensor]]:
    """A batch per step: fresh numbers, now and then a short one or one of another size."""
    model_batch = subject.batch()
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        batch = {}
        for name, tensor in model_batch.items():
            if tensor.is_floating_point():
                fresh = torch.randn(tensor.shape, generator=generator)
            else:
                fresh = torch.randint(0, int(tensor.max()) + 1, tensor.shape, generator=generator)
            if step % SHORT == SHORT - 1:
                fresh = fresh[: len(fresh) // 2]
            elif step % OTHER == OTHER - 1:
                fresh = other_size(fresh)
            batch[name] = fresh.contiguous()
        if "labels" in batch:
            batch["labels"] = batch["input_ids"].clone()
        yield batch


def other_size(tensor: torch.Tensor) -> torch.Tensor:
    """Three quarters of the sequence, or of the image's sides; labels of a whole image stay."""
    if tensor.dim() == 2:
        return tensor[:, : tensor.shape[1] * 3 // 4]
    if tensor.dim() == 4:
        return tensor[:, :, : tensor.shape[2] * 3 // 4, : tensor.shape[3] * 3 // 4]
    return tensor


def digest(tensors: Iterator[torch.Tensor] | list[torch.Tensor]) -> str:
    """Of every bit."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Everything that training changes."""
    state = [t for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*model.parameters(), *model.buffers(), *gradients, *state, torch.get_rng_state()]


def rss_B() -> int:
    """Resident bytes of this process now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def side(name: str, kind: str, steps: int, plan: str | None) -> dict[str, Any]:
    """One side of one soak, plainly or by a plan, in a process of its own: what was seen."""
    torch.set_num_threads(2)
    subject = SUBJECTS[name]
    torch.manual_seed(0)
    model = subject.build()
    optimizer = OPTIMIZERS[kind](model.parameters())
    if plan is not None:
        lowtide.fit(model, plan=plan, optimizer=optimizer)
    seen: dict[str, list[Any]] = {k: [] for k in ("digests", "seconds_s", "rss_B", "reserved_B", "addresses", "kinds")}
    saved = io.BytesIO()
    notes: list[str] = []
    for step, batch in enumerate(batches(subject, steps)):
        begin = time.perf_counter()
        hook = None
        if step == int(THROW * steps):
            hook = next(model.parameters()).register_hook(_stumble)
        try:
            optimizer.zero_grad()
            loss = loss_in(model(**batch))
            loss.backward()
            optimizer.step()
            notes.append(f"step {step}: loss {float(loss):.4f}")
        except Stumble:
            notes.append(f"step {step} stumbled")
            loss = torch.zeros(())
        finally:
            if hook is not None:
                hook.remove()
        seen["seconds_s"].append(time.perf_counter() - begin)
        normal = step % SHORT != SHORT - 1 and step % OTHER != OTHER - 1
        seen["kinds"].append("normal" if normal else "other")
        seen["digests"].append(digest([loss]) if step % 25 else digest(state_of(model, optimizer)))
        if step % EVALUATE == EVALUATE - 1:
            model.eval()
            with torch.no_grad():
                seen["digests"].append(digest([loss_in(model(**batch))]))
            model.train()
        if step == int(SAVE * steps):
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
        if step == int(RESUME * steps):
            saved.seek(0)
            found = torch.load(saved)
            model.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])
            del found
        seen["rss_B"].append(rss_B())
        if plan is not None:
            stats = lowtide.memory_stats(model)
            seen["reserved_B"].append(stats.reserved_B)
            if normal:
                held = [(h.address_B, h.size_B) for h in lowtide.snapshot(model) if h.size_B >= 512]
                seen["addresses"].append(hashlib.sha256(repr(held).encode()).hexdigest()[:12])
    seen["digests"].append(digest(state_of(model, optimizer)))
    result: dict[str, Any] = dict(seen)
    if plan is not None:
        stats = lowtide.memory_stats(model)
        result["stats"] = {name: getattr(stats, name) for name in stats.__struct_fields__}
        result["departures"] = [str(d) for d in lowtide.misplaced_allocations(model)][:20]
    return result


def _stumble(_: torch.Tensor) -> None:
    raise Stumble


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


def growth_MB(side: dict[str, Any], since: float) -> float:
    """Resident megabytes at the end over those at a part of the run."""
    return float(side["rss_B"][-1] - side["rss_B"][int(len(side["rss_B"]) * since)]) / 1e6


def measure(name: str, kind: str, steps: int) -> tuple[dict[str, Any], bool]:
    """One soak, predicted and run, with its rows; and whether it failed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        said = predict(name, kind, file)
        predictions = FOLDER / "soak_predictions.json"
        known = json.loads(predictions.read_text()) if predictions.exists() else {}
        predictions.write_text(json.dumps(known | {f"{name} {kind}": {"predicted": said}}, indent=1))
        print(f"{name} {kind}: predicted {said['reserved_B']:,} B of {said['budget_B']:,} B", flush=True)
        plain = answer_of(side, name, kind, steps, None)
        hard_budget = answer_of(side, name, kind, steps, str(file))
    stats = hard_budget["stats"]
    same = sum(a == b for a, b in zip(plain["digests"], hard_budget["digests"], strict=True))
    equal = same == len(plain["digests"])
    most_B = max(hard_budget["reserved_B"])
    error = (most_B - said["reserved_B"]) / (said["reserved_B"] - said["persistent_B"])
    normal = [s for s, k in zip(hard_budget["seconds_s"], hard_budget["kinds"], strict=True) if k == "normal"]
    plainly = [s for s, k in zip(plain["seconds_s"], plain["kinds"], strict=True) if k == "normal"]
    hits = stats["planned_hits"] / max(1, stats["planned_hits"] + stats["misplaced_allocations"])
    row = [
        name, kind, steps, "equal" if equal else f"DIFFERENT ({same} of {len(plain['digests'])})",
        f"{said['budget_B'] / 1e6:.1f}", f"{said['reserved_B'] / 1e6:.1f}", f"{most_B / 1e6:.1f}", f"{error:+.2%}",
        f"{hits:.4%}", stats["misplaced_allocations"], f"{statistics.median(normal) / statistics.median(plainly):.2f}",
    ]  # fmt: skip
    warm = len(hard_budget["rss_B"]) // 4
    steady = [
        name, kind, len(set(hard_budget["reserved_B"][warm:])), len(set(hard_budget["addresses"][warm:])),
        f"{drift(normal):.3f} ({drift(plainly):.3f})",
        f"{growth_MB(hard_budget, 0.25):+.1f} ({growth_MB(plain, 0.25):+.1f})",
        f"{growth_MB(hard_budget, 0.75):+.1f} ({growth_MB(plain, 0.75):+.1f})",
    ]  # fmt: skip
    found = {"predicted": said, "stats": stats, "departures": hard_budget["departures"], "row": row, "steady": steady}
    return found, not equal or most_B > said["budget_B"]


def main(arguments: list[str] | None = None) -> int:
    """Measures and writes; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--optimizers", nargs="*", default=list(OPTIMIZERS), choices=list(OPTIMIZERS))
    options = parser.parse_args(arguments)
    torch.set_num_threads(2)
    fresh_profiles()
    wanted = [(name, kind) for name in options.only for kind in options.optimizers]
    whole = len(wanted) == len(NETWORKS) * len(OPTIMIZERS)
    numbers: dict[str, Any] = {} if whole else read_numbers(RESULTS)
    failed = False
    for name, kind in wanted:
        found, row_failed = measure(name, kind, options.steps)
        numbers[f"{name} {kind}"] = found
        failed |= row_failed
        print(found["row"], found["steady"], flush=True)
    order = [f"{name} {kind}" for name in NETWORKS for kind in OPTIMIZERS]
    numbers = {key: numbers[key] for key in order if key in numbers}
    tables = [
        table(
            "Soak", ["network", "optimizer", "steps", "bits", "budget MB", "predicted reserved MB", "most reserved MB",
            "error over (reserved - persistent)", "planned hits", "departures", "time over plain"],
            [n["row"] for n in numbers.values()], len(order),
            "Evaluation every 50 steps, short batches, a second size, logging, an exception in one backward, a checkpoint "
            f"saved and resumed; alpha {ALPHA}.",
        ),
        table(
            "Drift after the first quarter", ["network", "optimizer", "different reserved bytes", "different address sets at the end of a step",
            "step time, last over second quarter (plain)", "RSS growth MB (plain)", "of that in the last quarter (plain)"],
            [n["steady"] for n in numbers.values()], len(order),
            "Address sets: of blocks of 512 B and more; one changes when the checkpoint is resumed. RSS holds the checkpoint itself, "
            "saved at half of the run and kept in memory to the end. Plain and wall ran one after the other.",
        ),
    ]  # fmt: skip
    path = write(RESULTS, "Soak: a training loop inside the wall", tables, numbers)
    print(path.read_text())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
