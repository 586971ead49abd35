"""DTR's simulator, run again on its own traces: ours beside what it says."""

from __future__ import annotations

from benchmarks.eager.dtr_figures import MEMORY, POLICIES, RATIOS, TIME, TRACES, published
from benchmarks.eager.replaying import LIMIT, Replay, replayed, trace_file
from benchmarks.parts import Effort, Found, Part, Row, rows_of
from benchmarks.results_file import table
from lowtide.eager_engine.replay import PUBLISHED

TOLERANCE = 0.0006
"""Published with three digits after the point."""
_COLUMNS = ("trace", "policy there", "ours", *(f"{ratio:g}" for ratio in RATIOS))
_NOTE = (
    "Bytes only, no addresses; a mutation copies; tensors go with their last name. Cost over the cost without a limit, at a "
    f"share of the trace's own peak; given up past {LIMIT:g}. In brackets: the simulator of DTR, where it differs by more than "
    "rounding. A row ends where the simulator's ended."
)


def _measure(trace: str, effort: Effort) -> list[Row]:
    policies = list(POLICIES)[:1] if effort.quick else list(POLICIES)
    rows = []
    for policy in policies:
        theirs = published(trace, policy)
        ours = []
        for ratio in RATIOS[: len(theirs)]:
            run = replayed(Replay(trace_file(trace), policy, ratio, PUBLISHED))
            ours.append(_outcome(run))
        rows.append({"trace": trace, "policy": policy, "ours": ours, "theirs": list(theirs)})
    return rows


def _outcome(run: Row) -> float | str:
    """Of a replay, in the words of the published table."""
    if run["refused"] is None:
        return float(run["overhead"])
    return TIME if run["refused"] == "time" else MEMORY


def differs(ours: float | str, theirs: float | str) -> bool:
    """Whether a cell is another than the published one, rounding apart."""
    if isinstance(ours, str) or isinstance(theirs, str):
        return ours != theirs
    return abs(ours - theirs) > TOLERANCE


def _cell(ours: float | str, theirs: float | str) -> str:
    shown = ours if isinstance(ours, str) else f"{ours:.3f}"
    there = theirs if isinstance(theirs, str) else f"{theirs:.3f}"
    return f"{shown} ({there})" if differs(ours, theirs) else shown


def _tables(found: Found) -> list[str]:
    rows = rows_of(found, TRACES)
    if not rows:
        return []
    pairs = [pair for row in rows for pair in zip(row["ours"], row["theirs"], strict=True)]
    same = sum(not differs(*pair) for pair in pairs)
    cells = [
        [
            row["trace"],
            POLICIES[row["policy"]],
            row["policy"],
            *(_cell(*pair) for pair in zip(row["ours"], row["theirs"], strict=True)),
            *["-"] * (len(RATIOS) - len(row["ours"])),
        ]
        for row in rows
    ]
    note = f"{_NOTE} {same} of {len(pairs)} cells are equal."
    return [table("DTR's simulator, reproduced", _COLUMNS, cells, len(rows), note)]


PUBLISHED_PART = Part("published", TRACES, _measure, _tables)
