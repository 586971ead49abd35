"""Policies executed side by side in one arena with one in-place rule: bits, recomputation, search, fragmentation, seconds."""

from __future__ import annotations

import statistics
from typing import Any

from tests.eager_engine.comparison import Left, differences, train

from benchmarks.eager.networks import NETWORKS
from benchmarks.eager.running import LIMITS, POLICIES, UNLIMITED_B, Loop, left, moved, peak_of, prepare, recomputed
from benchmarks.parts import Effort, Found, Part, Row, rows_of
from benchmarks.results_file import table
from benchmarks.runner import HandOver, answer_of, run
from lowtide.device.heap import keep_warm
from lowtide.units import format_B

KEYS = tuple(NETWORKS)
HALF = 0.5
SHARES = (0.7, HALF, 0.35)
STEPS = 10
WARM = 3
TARGET = 0.8
"""Of Coop's recomputation, with the memory of the last step, at half of the peak."""
_BITS = ("network", "policy", *(f"{share:.0%}" for share in SHARES))
_OVERHEADS = ("network", "peak", "policy", *(f"{share:.0%}" for share in SHARES))
_DETAILS = (
    "network", "policy", "recomputed", "over Coop's", "with moves", "fragmentation", "search per allocation", "searches per step",
    "search, of the step", "evictions per step", "moved per step", "departures", "step, without a limit", "step",
)  # fmt: skip


def loops(hand_over: HandOver, name: str, policy: str, peak_B: int, shares: list[float], steps: int) -> None:
    """Every share in turn, in a process of its own: digests beside those of plain eager, recomputation, search, fragmentation, seconds."""
    prepare()
    network = NETWORKS[name]
    plain = train(network, steps)
    keep_warm()
    free = Loop(network, policy, UNLIMITED_B, WARM + 3).run()
    for share in shares:
        budget_B = int(peak_B * share)
        found = Loop(network, policy, budget_B, steps, digests=True).run()
        row = {"network": name, "policy": policy, "share": share, "budget_B": budget_B, "refused": found["refused"]}
        if not found["refused"]:
            row |= compared(plain, found) | counted(found) | {"free_s": statistics.median(free["seconds_s"][WARM:])}
        hand_over(row)


def compared(plain: Left, found: dict[str, Any]) -> dict[str, Any]:
    """What differs from plain eager."""
    different = differences(plain, left(found))
    return {"different": len(different), "first": different[:3], "compared": sum(map(len, plain.steps))}


PER_STEP = {
    "search_s": "search_s", "searches": "searches", "calls": "calls", "evictions": "evictions", "reruns": "recomputations",
    "moved_B": "moved_B", "retries": "retries",
}  # fmt: skip
"""What rows call the statistics that are counted per step."""


def counted(found: dict[str, Any]) -> dict[str, Any]:
    """Of the steps after the warm ones, and per step."""
    first, last, steps = found["counts"][WARM - 1], found["counts"][-1], len(found["counts"]) - WARM
    return {name: (last[field] - first[field]) / steps for name, field in PER_STEP.items()} | {
        "recomputed": recomputed(found, WARM),
        "moved": moved(found, WARM),
        "fragmentation": last["fragmentation"],
        "step_s": statistics.median(found["seconds_s"][WARM:]),
        "departures": last["divergences"],
        "peak_B": last["peak_B"],
    }


def _measure(name: str, effort: Effort) -> list[Row]:
    peak_B = answer_of(peak_of, name)
    shares = (HALF,) if effort.quick else tuple(sorted(SHARES, key=lambda share: share != HALF))
    rows: list[Row] = []
    for policy in POLICIES:
        ended = run(loops, name, policy, peak_B, shares, STEPS, limits=LIMITS)
        missing = shares[len(ended.rows) :]
        rows += ended.rows
        rows += [
            {
                "network": name,
                "policy": policy,
                "share": s,
                "budget_B": int(peak_B * s),
                "refused": ended.failure,
                "failed": True,
            }
            for s in missing
        ]
    return [row | {"loop_B": peak_B} for row in rows]


def broken(rows: list[Row]) -> list[str]:
    """Every row whose bits differ, whose bytes passed the budget, or that did not end."""
    texts = []
    for r in rows:
        where = f"executed: {r['network']} {r['policy']} {r['share']}"
        if r.get("failed"):
            texts.append(f"{where}: {r['refused']}")
        elif not r["refused"] and (r["different"] or r["peak_B"] > r["budget_B"]):
            texts.append(f"{where}: {r['different']} differences, {r['peak_B']} of {r['budget_B']} B")
    return texts


def _of(rows: list[Row], network: str, policy: str, share: float) -> Row | None:
    return next((r for r in rows if (r["network"], r["policy"], r["share"]) == (network, policy, share)), None)


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, KEYS)
    names = [key for key in KEYS if found.get(key)]
    if not rows:
        return []
    pairs = [(name, policy) for name in names for policy in POLICIES]
    bits = [[n, p, *(_bits(_of(rows, n, p, s)) for s in SHARES)] for n, p in pairs]
    overheads = [
        [n, format_B(found[n][0]["loop_B"]), p, *(_recomputed(_of(rows, n, p, s)) for s in SHARES)] for n, p in pairs
    ]
    half = [r for n, p in pairs if (r := _of(rows, n, p, HALF)) is not None]
    compared = sum(r.get("compared", 0) for r in rows)
    return [
        table(
            "The same bits", _BITS, bits, len(bits),
            f"{STEPS} steps with the optimizer inside; after each one loss, gradients, parameters, buffers, the optimizer's state and "
            f"torch's generator are compared byte by byte with plain eager's, and once more after the context: {compared:,} "
            "comparisons. Shares are of the most that the loop holds without a limit, weights and optimizer state included. No room: "
            "the run was refused.",
        ),
        table(
            "Recomputation, executed", _OVERHEADS, overheads, len(overheads),
            f"Modelled cost of reruns over that of first runs, steps {WARM + 1} to {STEPS}: deterministic. All policies in the same arena, with "
            "the same in-place rule and the same homes; blocks slide where the policy says so. The GAN's rows of DTR, DTE and Coop are of an "
            "earlier run.",
        ),
        table(
            "At half of the peak", _DETAILS, [_cells(r, rows) for r in half], len(half),
            f"Target: with the memory of the last step at most {TARGET} of Coop's recomputation. With moves: a moved byte is read and "
            f"written at the rate of the modelled costs. Search: seconds from a request that found no "
            "place to the one that did, reruns not among them. One thread, on a machine that does other work as well: seconds are "
            "what they are, counts are deterministic.",
        ),
    ]  # fmt: skip


def _bits(row: Row | None) -> str:
    if row is None:
        return "-"
    if row["refused"]:
        return "NOT ENDED" if row.get("failed") else "no room"
    return "equal" if not row["different"] else f"{row['different']} DIFFERENT"


def _recomputed(row: Row | None) -> str:
    return f"{row['recomputed']:.1%}" if row is not None and not row["refused"] else _bits(row)


def _cells(row: Row, rows: list[Row]) -> list[object]:
    if row["refused"]:
        return [row["network"], row["policy"], _bits(row), *["-"] * (len(_DETAILS) - 3)]
    coop = _of(rows, row["network"], "coop", HALF)
    against = "-"
    if coop is not None and not coop["refused"] and coop["recomputed"]:
        against = f"{row['recomputed'] / coop['recomputed']:.2f}"
    return [
        row["network"],
        row["policy"],
        f"{row['recomputed']:.1%}",
        against,
        f"{row['recomputed'] + row['moved']:.1%}",
        f"{row['fragmentation']:.1%}",
        f"{row['search_s'] * 1e6 / max(row['searches'], 1):.1f} us",
        f"{row['searches']:.0f}",
        f"{row['search_s'] / row['step_s']:.1%}",
        f"{row['evictions']:.0f}",
        format_B(int(row["moved_B"])),
        row["departures"],
        f"{row['free_s'] * 1e3:.0f} ms",
        f"{row['step_s'] * 1e3:.0f} ms",
    ]


EXECUTED_PART = Part("executed", KEYS, _measure, _tables)
