"""Is the default policy of eager loops ever the wrong choice? Recorded steps under it, under `tide`, and under Coop.

`python -m benchmarks.eager.eager_default` writes `results/eager_default.md` and `.json`. It fails if a row is missing, if the
default is more than 1 % behind `tide` or more than 2 % behind Coop anywhere, or if it refuses what one of them runs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from benchmarks.eager.replaying import recorded, trace_file
from benchmarks.eager.unseen import HELD_BACK, STUDIED
from benchmarks.results_file import table, write
from lowtide.eager_engine.replay import Rules, compiled_replay, compiled_tape
from lowtide.ir.tape import Ran, Tape, load_tape

RESULTS = "eager_default"
DEFAULT = "tide-memory"
POLICIES = ("coop", "tide", DEFAULT)
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
MOST = {"tide": 1.01, "coop": 1.02}
"""How many times the time of another policy the default may take."""
PATIENCE = 6.0
MOVE = 0.4
"""Of the mean cost of making a byte: what moving one costs."""
NOTE = (
    "Time of a step by the modelled costs, with what is run again and moved, over the plain time, less one; at a share of the trace's "
    f"own peak. Given up past {PATIENCE:g} times. The default plays a trace three times: the second step is rehearsed, since it is "
    "like the first, and the third counts. The other policies know nothing of a step before."
)


@cache
def _tape(trace: str) -> tuple[Tape, Any, float]:
    """A trace, as it is read, as the engine reads it, and what moving a byte costs in it."""
    tape = load_tape(trace_file(trace))
    return tape, compiled_tape(tape), _made_ns(tape) * MOVE


def _made_ns(tape: Tape) -> float:
    """What a byte costs to make, on the geometric mean over bytes; small results do not count."""
    made = [(event.cost_ns + 1, size_B) for event in tape.events if isinstance(event, Ran) for size_B in event.sizes_B]
    made = [(cost_ns, size_B) for cost_ns, size_B in made if size_B > Rules().small_B]
    return math.exp(sum(math.log(ns / size_B) * size_B for ns, size_B in made) / sum(size_B for _, size_B in made))


def times(trace: str, policy: str) -> list[float | str]:
    """At each share: times the plain time, or why not."""
    tape, compiled, move_ns = _tape(trace)
    found: list[float | str] = []
    for share in SHARES:
        result = compiled_replay(tape, policy, int(tape.peak_B * share), Rules(limit=PATIENCE), compiled=compiled)
        if result.refused is None:
            found.append(result.overhead + result.moved_B * move_ns / tape.time_ns)
        else:
            found.append("over" if result.refused.startswith("slower") else "no room")
    return found


def ratios(rows: Sequence[dict[str, Any]], rival: str) -> list[tuple[float, str, float]]:
    """The default's time over a rival's, the worst first: (ratio, trace, share). Infinite where only the rival runs."""
    by = {(row["trace"], row["policy"]): row["times"] for row in rows}
    found = []
    for trace in dict.fromkeys(row["trace"] for row in rows):
        for share, ours, theirs in zip(SHARES, by[trace, DEFAULT], by[trace, rival], strict=True):
            if not isinstance(theirs, str):
                found.append((math.inf if isinstance(ours, str) else ours / theirs, trace, share))
    return sorted(found, reverse=True)


def _table(title: str, traces: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    cells = [
        [row["trace"], row["policy"], *(t if isinstance(t, str) else f"{t - 1:.1%}" for t in row["times"])]
        for row in rows
        if row["trace"] in traces
    ]
    return table(title, ("trace", "policy", *(f"{s:g}" for s in SHARES)), cells, len(traces) * len(POLICIES), NOTE)


def main(arguments: list[str] | None = None) -> int:
    """Measures, writes, prints."""
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
    known = (*recorded(), *(f"unseen/{name}" for name in STUDIED))
    unseen = tuple(f"unseen/{name}" for name in HELD_BACK)
    rows = [{"trace": t, "policy": p, "times": times(t, p)} for t in (*known, *unseen) for p in POLICIES]
    worst, broken = [], []
    for rival, most in MOST.items():
        for group, traces in (("looked at", known), ("held back", unseen)):
            found = ratios([row for row in rows if row["trace"] in traces], rival)
            ratio, trace, share = found[0]
            behind = [f"{t} at {s:g}: {r:.3f} times {rival}" for r, t, s in found if r > most]
            worst.append([rival, group, len(found), f"{ratio:.3f}", f"{trace} at {share:g}", f"{most:g}", len(behind)])
            broken += behind
    columns = ("rival", "traces", "cells", "worst ratio", "where", "allowed", "beyond it")
    tables = [
        table("The default over its rivals", columns, worst, 4, "Of the times below; where only the rival runs: inf."),
        _table("Traces that were looked at while the policies were written", known, rows),
        _table("Traces that were held back", unseen, rows),
    ]
    write(RESULTS, "The default policy of eager loops, beside tide and Coop", tables, rows)
    sys.stdout.write(tables[0] + "\n".join(["", *broken]) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
