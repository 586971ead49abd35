"""One side of one soak in a process of its own: a training loop with everything that happens to training loops.

Prints one JSON object. `python -m benchmarks.fidelity.soak_run SUBJECT OPTIMIZER SIDE STEPS [PLAN]`, SIDE is plain or wall.
"""

from __future__ import annotations

import hashlib
import io
import json
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import lowtide
from benchmarks.networks import SUBJECTS, Subject, loss_in

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


def soak(subject: Subject, kind: str, steps: int, plan: str | None) -> dict[str, Any]:
    """Trains, and writes down what was seen."""
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


def main() -> None:
    name, kind, side, steps, *plan = sys.argv[1:]
    torch.set_num_threads(2)
    result = soak(SUBJECTS[name], kind, int(steps), plan[0] if side == "wall" else None)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
