"""Recorded steps replayed in an address space: overhead by share of the peak, the smallest share, fragmentation, search."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.eager.replaying import (
    GRAIN,
    LIMIT,
    PATIENCE,
    Replay,
    profile,
    recorded,
    replayed,
    smallest_share,
    trace_file,
)
from benchmarks.parts import Effort, Found, Part, Row, rows_of
from benchmarks.results_file import table
from lowtide.units import format_B

RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
POLICIES = ("dtr", "dte", "coop", "tide", "tide-memory")
ABLATION = ("coop", "coop-no-windows", "coop-no-partition", "coop-no-in-place", "tide", "tide-memory")
TIGHT = (0.7, 0.6, 0.5, 0.4, 0.3)
TRACES = recorded()
_SPACE = (
    "One address space as large as the budget, blocks aligned to 64 bytes. Overhead: cost of reruns over cost of the step; "
    f"given up past {LIMIT - 1:.0%}; a share of the trace's own peak."
)


def _rows(trace: str, policies: Sequence[str], ratios: Sequence[float], *, seek: bool) -> list[Row]:
    rows = []
    facts = profile(trace_file(trace))
    for policy in policies:
        runs = [replayed(Replay(trace_file(trace), policy, ratio)) for ratio in ratios]
        row: Row = {"trace": trace, "policy": policy, "runs": runs} | facts
        if seek:
            row["smallest"] = smallest_share(trace_file(trace), policy)
        rows.append(row)
    return rows


def _measure(trace: str, effort: Effort) -> list[Row]:
    return _rows(trace, POLICIES, RATIOS[:2] if effort.quick else RATIOS, seek=True)


def _measure_ablation(trace: str, effort: Effort) -> list[Row]:
    return _rows(trace, ABLATION, TIGHT[:1] if effort.quick else TIGHT, seek=False)


def _overhead(run: Row) -> str:
    if run["refused"] is None:
        return f"{run['overhead'] - 1:.1%}"
    return "over" if run["refused"] == "time" else "no room"


def _overheads(rows: Sequence[Row], ratios: Sequence[float], title: str, note: str) -> str:
    columns = ("trace", "policy", *(f"{ratio:g}" for ratio in ratios))
    cells = [
        [r["trace"], r["policy"], *(_overhead(run) for run in r["runs"]), *["-"] * (len(ratios) - len(r["runs"]))]
        for r in rows
    ]
    return table(title, columns, cells, len(rows), note)


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, TRACES)
    if not rows:
        return []
    facts = [
        [r["trace"], r["calls"], format_B(r["peak_B"]), f"{r['floor_B'] / r['peak_B']:.3f}"]
        for r in rows
        if r["policy"] == POLICIES[0]
    ]
    limits = [
        [
            r["trace"], r["policy"], f"{r['floor_B'] / r['peak_B']:.3f}", f"{r['smallest']:.2f}",
            *(_detail(r, ratio) for ratio in (0.7, 0.5)),
        ]
        for r in rows
    ]  # fmt: skip
    return [
        table(
            "The recorded steps", ("trace", "operators", "peak", "floor, of the peak"), facts, len(facts),
            "Floor: the most that one operator takes with its arguments, its results and everything that is never dropped.",
        ),
        _overheads(rows, RATIOS, "Recorded steps in an address space", _SPACE),
        table(
            "Smallest share, fragmentation, search",
            ("trace", "policy", "floor", "smallest share", "at 0.7", "at 0.5"),
            limits,
            len(limits),
            f"Smallest share of the peak that runs, to {GRAIN:g}, at up to {PATIENCE:g} times the cost. At a share: free bytes after a request that evicted, of the "
            "budget; microseconds of search per such request; evictions.",
        ),
    ]  # fmt: skip


def _detail(row: Row, ratio: float) -> str:
    run = row["runs"][RATIOS.index(ratio)] if RATIOS.index(ratio) < len(row["runs"]) else None
    if run is None or run["refused"] is not None:
        return "-"
    per_search_us = run["search_s"] * 1e6 / max(1, run["searches"])
    return f"{run['fragmentation']:.1%}, {per_search_us:.1f} us, {run['evictions']}"


def _ablation(found: Found) -> list[str]:
    rows = rows_of(found, TRACES)
    if not rows:
        return []
    note = f"{_SPACE} Coop without one of its three techniques; then ours online, and with the memory of the last step."
    return [_overheads(rows, TIGHT, "What each technique brings", note)]


TRACES_PART = Part("traces", TRACES, _measure, _tables)
ABLATION_PART = Part("ablation", TRACES, _measure_ablation, _ablation)
