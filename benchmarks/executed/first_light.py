"""Is it the same training, inside the bytes, at the predicted peak and time? Three networks, every budget.

`python -m benchmarks.executed.first_light [--quick]` writes `results/first_light.md` and `.json`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from tests.networks import differences, train
from torch import nn

import lowtide
from benchmarks.networks import SUBJECTS, Subject, loss_in
from benchmarks.results_file import fresh_profiles, read_numbers, table, write
from benchmarks.stopwatch import interleave, rank_correlation, ratio, spread
from lowtide.device.heap import keep_warm
from lowtide.device.observer import observe
from lowtide.results.plan import Plan

RESULTS = "first_light"
ALPHAS = (0.75, 0.5, 0.25, 0.1, 0.05)
EIGHT = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)


class Bench:
    """One network, plainly and fitted, with a plan per alpha."""

    def __init__(self, subject: Subject) -> None:
        torch._dynamo.reset()
        self.subject = subject
        self.plain, self.fitted = subject.build(), lowtide.fit(subject.build(), budget="100% of plain")
        self.start = {k: v.clone() for k, v in self.plain.state_dict().items()}
        self.batch = subject.batch()
        self.step(self.fitted)()
        self.keep_all: Plan = self.fitted.lowtide.plan
        self.floor_B, self.smallest_B = self._limits()
        self.plans: dict[float, Plan | str] = {a: self._plan(a) for a in sorted({*ALPHAS, *EIGHT})}

    def step(self, module: nn.Module) -> Callable[[], None]:
        """One forward and backward, outputs held through the backward, gradients dropped."""

        def run() -> None:
            outputs = module(**self.batch)
            loss_in(outputs).backward()
            module.zero_grad(set_to_none=True)

        return run

    def _limits(self) -> tuple[int, int]:
        self.fitted.lowtide.set_budget(1)
        try:
            self.step(self.fitted)()
        except lowtide.InfeasibleBudget as error:
            return error.floor_B, error.smallest_B or self.keep_all.peak_B
        raise AssertionError("one byte cannot be enough")

    def _plan(self, alpha: float) -> Plan | str:
        self.fitted.lowtide.set_budget(int(self.floor_B + alpha * (self.keep_all.peak_B - self.floor_B)))
        try:
            self.step(self.fitted)()
        except lowtide.InfeasibleBudget as error:
            return f"no plan: smallest found {error.smallest_B}, floor {error.floor_B}"
        return self.fitted.lowtide.plan  # type: ignore[no-any-return]

    def feasible(self, alphas: tuple[float, ...]) -> dict[float, Plan]:
        """The plans that exist among the given alphas."""
        return {a: p for a in alphas if isinstance(p := self.plans[a], Plan)}


def equality(bench: Bench) -> list[list[object]]:
    """Three optimizer steps at keep-all and at each alpha, against plain PyTorch."""
    batches = [bench.batch] * 3
    loss = lambda m, b: loss_in(m(**b))  # noqa: E731
    bench.plain.load_state_dict(bench.start)
    expected = train(bench.plain, loss, batches)
    rows: list[list[object]] = []
    for alpha, plan in {"keep-all": bench.keep_all, **bench.plans}.items():
        if alpha not in ("keep-all", *ALPHAS):
            continue
        if isinstance(plan, str):
            rows.append([bench.subject.name, alpha, plan])
            continue
        bench.fitted.load_state_dict(bench.start)
        bench.fitted.lowtide.use(plan)
        different = differences(expected, train(bench.fitted, loss, batches))
        rows.append([bench.subject.name, alpha, "equal" if not different else f"DIFFERENT: {different[:3]}"])
    bench.plain.load_state_dict(bench.start)
    bench.fitted.load_state_dict(bench.start)
    return rows


def peaks(bench: Bench) -> tuple[list[list[object]], int]:
    """Predicted against observed, the error over (peak - persistent); and plain PyTorch's own peak."""
    persistent_B = bench.keep_all.record.graph.persistent_B + bench.keep_all.record.outside_B
    with observe() as seen:
        bench.step(bench.plain)()
    plain_B = seen.peak_B + persistent_B
    rows: list[list[object]] = []
    for alpha, plan in {1.0: bench.keep_all, **bench.feasible(ALPHAS)}.items():
        bench.fitted.lowtide.use(plan)
        with observe() as seen:
            bench.step(bench.fitted)()
        predicted_B = plan.peak_B - persistent_B
        rows.append([
            bench.subject.name, "keep-all" if alpha == 1.0 else alpha, _mb(plan.budget_B), f"{plan.budget_B / plain_B:.0%}",
            _mb(plan.peak_B), _mb(seen.peak_B + persistent_B), f"{seen.peak_B / predicted_B - 1:+.2%}",
        ])  # fmt: skip
    return rows, plain_B


def times(bench: Bench, rounds: int) -> tuple[list[list[object]], dict[str, Any]]:
    """Predicted against measured step times over eight budgets, and keep-all against plain eager."""

    def fitted(plan: Plan) -> Callable[[], Callable[[], None]]:
        def prepare() -> Callable[[], None]:
            bench.fitted.lowtide.use(plan)
            return bench.step(bench.fitted)

        return prepare

    plans = bench.feasible(EIGHT)
    variants: dict[str, Callable[[], object]] = {
        "eager": lambda: bench.step(bench.plain),
        "eager again": lambda: bench.step(bench.plain),
        "keep-all": fitted(bench.keep_all),
    }
    variants |= {f"{a}": fitted(p) for a, p in plans.items()}
    stock = bench.subject.build()  # torch's own capture without lowtide: what the capture alone costs
    stock.compile(backend="aot_eager")
    variants["stock aot_eager"] = lambda: bench.step(stock)
    found = interleave(variants, rounds)
    eager, keep_all = found["eager"], found["keep-all"]
    rows: list[list[object]] = []
    for alpha, plan in plans.items():
        measured = found[f"{alpha}"]
        rows.append([
            bench.subject.name, alpha, f"{plan.time_s:.3f}", f"{measured.median_s:.3f}", f"{plan.time_s / measured.median_s - 1:+.1%}",
            f"{plan.overhead:.1%}", f"{ratio(measured, keep_all) - 1:+.1%}", f"{ratio(measured, eager) - 1:+.1%}",
        ])  # fmt: skip
    errors = [abs(p.time_s / found[f"{a}"].median_s - 1) for a, p in plans.items()]
    summary = {
        "eager_s": eager.median_s,
        "keep_all_over_eager": ratio(keep_all, eager),
        "stock_over_eager": ratio(found["stock aot_eager"], eager),
        "a_a": ratio(found["eager again"], eager),
        "a_a_spread": spread(found["eager again"], eager),
        "rank_correlation": rank_correlation(
            [p.time_s for p in plans.values()], [found[f"{a}"].median_s for a in plans]
        ),
        "median_time_error": statistics.median(errors),
        "budgets": len(plans),
    }
    return rows, summary


def planning(bench: Bench, plain_B: int) -> list[list[object]]:
    """Seconds of planning, overhead, bound and gap per alpha."""
    rows: list[list[object]] = []
    for alpha in ALPHAS:
        plan = bench.plans[alpha]
        budget_B = int(bench.floor_B + alpha * (bench.keep_all.peak_B - bench.floor_B))
        share = f"{budget_B / plain_B:.0%}"
        if isinstance(plan, str):
            rows.append([bench.subject.name, alpha, share, plan, *["-"] * 5])
            continue
        record = plan.record
        rows.append([
            bench.subject.name, alpha, share, f"{record.outcome.stats['elapsed_s']:.2f}", f"{plan.overhead:.2%}",
            f"{record.bound_overhead:.2%}", f"{plan.gap:.2%}", record.outcome.stats.get("winner", record.outcome.solver), plan.status.name,
        ])  # fmt: skip
    return rows


def _mb(size_B: int) -> str:
    return f"{size_B / 1e6:.1f}"


def main(arguments: list[str] | None = None) -> int:
    """Runs everything and writes the tables; 1 if any training differed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, for trying the benchmark itself")
    parser.add_argument(
        "--only",
        nargs="*",
        default=list(SUBJECTS),
        choices=list(SUBJECTS),
        help="measure these again, keep the others' rows",
    )
    options = parser.parse_args(arguments)
    keep_warm(1 << 30)
    fresh_profiles()
    rows: dict[str, list[list[object]]] = {
        k: [] for k in ("equality", "limits", "peaks", "times", "summary", "planning")
    }
    for name in options.only:
        print(f"{name}: capture, profile, plan", flush=True)
        bench = Bench(SUBJECTS[name])
        print(f"{name}: equality", flush=True)
        rows["equality"] += equality(bench)
        print(f"{name}: peaks", flush=True)
        found, plain_B = peaks(bench)
        rows["peaks"] += found
        print(f"{name}: times", flush=True)
        found, summary = times(bench, 3 if options.quick else 11)
        rows["times"] += found
        rows["summary"].append([
            name, f"{summary['eager_s']:.3f}", f"{summary['keep_all_over_eager']:.3f}", f"{summary['stock_over_eager']:.3f}", f"{summary['a_a']:.3f}", summary["a_a_spread"],
            f"{summary['rank_correlation']:.3f}", f"{summary['median_time_error']:.1%}", summary["budgets"],
        ])  # fmt: skip
        rows["planning"] += planning(bench, plain_B)
        record = bench.keep_all.record
        rows["limits"].append([
            name, len(record.graph.program), _mb(record.graph.persistent_B + record.outside_B), _mb(bench.floor_B), _mb(bench.smallest_B),
            f"{bench.smallest_B / bench.floor_B:.3f}", _mb(bench.keep_all.peak_B), _mb(plain_B),
        ])  # fmt: skip
    if len(options.only) < len(SUBJECTS) and not options.quick:
        rows = _with_earlier(rows)
    path = _write(rows, len({row[0] for row in rows["limits"]}), options.quick)
    print(path.read_text())
    return int(any("DIFFERENT" in str(r[-1]) for r in rows["equality"]))


def _with_earlier(rows: dict[str, list[list[object]]]) -> dict[str, list[list[object]]]:
    """Rows of networks that this run left out, from the results of an earlier one, in the usual order."""
    earlier = read_numbers(RESULTS)
    order = list(SUBJECTS)
    merged = {}
    for kind, fresh in rows.items():
        measured = {row[0] for row in fresh}
        merged[kind] = [*(r for r in earlier.get(kind, []) if r[0] not in measured), *fresh]
        merged[kind].sort(key=lambda row: order.index(str(row[0])))
    return merged


def _write(rows: dict[str, list[list[object]]], networks: int, quick: bool) -> Any:
    median_s = statistics.median(float(str(r[3])) for r in rows["planning"] if r[4] != "-")
    tables = [
        table(
            "Equality", ["network", "alpha", "loss, gradients, parameters, buffers, generator over three steps"],
            rows["equality"], networks * (1 + len(ALPHAS)), "`torch.equal` against plain PyTorch.",
        ),
        table(
            "Limits, MB", ["network", "operators", "persistent", "proved floor", "smallest planned", "ratio", "keep-all", "plain eager (observed)"],
            rows["limits"], networks,
        ),
        table(
            "Peak, MB", ["network", "alpha", "budget", "of plain", "predicted", "observed", "error over (peak - persistent)"],
            rows["peaks"], sum(1 for r in rows["planning"] if r[4] != "-") + networks,
            "Predicted before the first step; observed from allocator events of one step.",
        ),
        table(
            "Planning", ["network", "alpha", "of plain", "seconds", "overhead", "bound overhead", "gap", "winner", "status"],
            rows["planning"], networks * len(ALPHAS), f"Median {median_s:.2f} s.",
        ),
        table(
            "Time", ["network", "alpha", "predicted s", "measured s", "error", "predicted overhead", "measured over keep-all", "measured over eager"],
            rows["times"], sum(int(str(r[-1])) for r in rows["summary"]),
        ),
        table(
            "Time, summary",
            ["network", "eager s", "keep-all / eager", "stock aot_eager / eager", "A/A", "A/A spread", "rank correlation", "median error", "budgets"],
            rows["summary"], networks, "Medians of interleaved rounds; A/A is plain eager against itself.",
        ),
    ]  # fmt: skip
    return write(f"{RESULTS}_quick" if quick else RESULTS, "First light: three networks, every budget", tables, rows)


if __name__ == "__main__":
    sys.exit(main())
