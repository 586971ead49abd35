"""Peak and step time of what people use today, and of lowtide at the same observed peak, in one run.

Plain eager, `torch.utils.checkpoint` around every block, stock `torch.compile` with `activation_memory_budget` from
1 to 0. Dropout is 0, because stock budgets corrupt the gradients of dropout (pytorch#190758).

`python -m benchmarks.side_by_side [--only gpt2]` writes `results/side_by_side.md` and `.json`.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import lowtide
from benchmarks.networks import WITHOUT_DROPOUT, Subject, loss_in
from benchmarks.results_file import fresh_profiles, table, write
from benchmarks.stopwatch import interleave, ratio
from lowtide.device.heap import keep_warm
from lowtide.device.observer import observe
from lowtide.frontends.compiling import compiled_call

BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)


def checkpointed(subject: Subject) -> nn.Module:
    """Every block recomputed in the backward."""
    model = subject.build()
    for block in subject.blocks(model):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return model


def stock(subject: Subject, budget: float) -> nn.Module:
    """Inductor, with its partitioner's budget in force while it compiles at the first call.

    Each variant's call has a code object of its own: Dynamo would serve equal models of one class with the first one's code.
    """
    model = subject.build()
    model._compiled_call_impl = compiled_call(model, "inductor", dynamic=False)
    with torch._functorch.config.patch(activation_memory_budget=budget):
        loss_in(model(**subject.batch())).backward()
    model.zero_grad(set_to_none=True)
    return model


def measure(subject: Subject, rounds: int) -> list[list[object]]:
    """Rows of one network."""
    batch = subject.batch()

    def step(module: nn.Module) -> Callable[[], None]:
        def run() -> None:
            outputs = module(**batch)
            loss_in(outputs).backward()
            module.zero_grad(set_to_none=True)

        return run

    def peak_B(module: nn.Module) -> int:
        step(module)()
        with observe() as seen:
            step(module)()
        return seen.peak_B

    others: dict[str, nn.Module] = {"eager": subject.build(), "checkpoint per block": checkpointed(subject)}
    torch._dynamo.reset()
    for budget in BUDGETS:
        print(f"{subject.name}: compiling stock, budget {budget}", flush=True)
        others[f"torch.compile, budget {budget}"] = stock(subject, budget)
    peaks_B = {name: peak_B(module) for name, module in others.items()}
    fitted = lowtide.fit(subject.build(), budget="100% of plain")
    step(fitted)()
    persistent_B = fitted.lowtide.plan.record.graph.persistent_B + fitted.lowtide.plan.record.outside_B
    plans: dict[str, Any] = {}
    for name, size_B in peaks_B.items():
        fitted.lowtide.set_budget(size_B + persistent_B)
        try:
            step(fitted)()
            plans[name] = fitted.lowtide.plan
        except lowtide.InfeasibleBudget as error:
            plans[name] = error

    def planned(plan: Any) -> Callable[[], Callable[[], None]]:
        def prepare() -> Callable[[], None]:
            fitted.lowtide.use(plan)
            return step(fitted)

        return prepare

    feasible = {name: plan for name, plan in plans.items() if not isinstance(plan, Exception)}
    variants: dict[str, Callable[[], object]] = {
        name: functools.partial(step, module) for name, module in others.items()
    }
    variants["eager again"] = functools.partial(step, others["eager"])
    variants |= {f"lowtide: {name}": planned(plan) for name, plan in feasible.items()}
    print(f"{subject.name}: timing {len(variants)} variants", flush=True)
    found = interleave(variants, rounds)
    rows: list[list[object]] = []
    for name, size_B in peaks_B.items():
        row: list[object] = [subject.name, name, f"{size_B / 1e6:.1f}", f"{ratio(found[name], found['eager']):.3f}"]
        if name in feasible:
            fitted.lowtide.use(feasible[name])
            with observe() as seen:
                step(fitted)()
            ours = ratio(found[f"lowtide: {name}"], found["eager"])
            row += [f"{seen.peak_B / 1e6:.1f}", f"{ours:.3f}", f"{ours / ratio(found[name], found['eager']):.3f}"]
        else:
            row += ["no plan", "-", "-"]
        rows.append(row)
    again = ratio(found["eager again"], found["eager"])
    rows.append([subject.name, "eager again (A/A)", f"{peaks_B['eager'] / 1e6:.1f}", f"{again:.3f}", "-", "-", "-"])
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Runs and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(WITHOUT_DROPOUT), choices=list(WITHOUT_DROPOUT))
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    keep_warm(1 << 30)
    fresh_profiles()
    rows = [row for name in options.only for row in measure(WITHOUT_DROPOUT[name], options.rounds)]
    columns = [
        "network", "variant", "peak above persistent, MB", "time / eager", "lowtide peak, MB", "lowtide time / eager", "lowtide / variant",
    ]  # fmt: skip
    note = (
        "Observed peaks from allocator events; medians of interleaved rounds. Stock torch.compile fuses kernels, lowtide runs "
        "torch's own operators unchanged, so that every bit stays equal: where a ratio in the last column is above 1, lowtide loses."
    )
    path = write(
        "side_by_side",
        "Side by side, dropout 0",
        [table("Peak and time", columns, rows, len(options.only) * (3 + len(BUDGETS)), note)],
        rows,
    )
    print(path.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
