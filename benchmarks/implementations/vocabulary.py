"""Language models of 32,768 tokens and more: the proved floor and the smallest budget, with and without the chunked loss.

Units: `_B` bytes.
"""

from __future__ import annotations

import math

from benchmarks.implementations.levels import least_B
from benchmarks.implementations.rows import LEVELS, SCHEDULE_ONLY, Menu, case, planned, summary
from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of, say
from benchmarks.results_file import table
from benchmarks.runner import answer_of
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import LOSS

MENUS = (
    SCHEDULE_ONLY,
    Menu("exact without the loss", Numerics.EXACT, (LOSS,)),
    LEVELS[1],
    Menu("reassociated without the loss", Numerics.REASSOCIATED, (LOSS,)),
    LEVELS[2],
)
_PLANNED, _EXECUTED = "GPT-2, planned", "small GPT-2, executed"
_KEYS = tuple(f"{what}, {menu.name}" for what in (_PLANNED, _EXECUTED) for menu in MENUS)
_LOGITS_B = 8 * 1024 * 50_257 * 4
COLUMNS = (
    "model", "implementations", "logits, MB", "kept whole, MB", "proved floor, MB", "smallest budget, MB", "over the floor",
    "of the logits", "overhead there", "observed peak, MB", "step", "others than the program's",
)  # fmt: skip
NOTE = (
    "GPT-2: 12 layers, 50,257 tokens in its vocabulary, 8 x 1024 of them, planned for an A100. Executed: two layers of width 128, "
    "32,768 in its vocabulary, 8 x 128 of them, one step inside the smallest budget, reserve included. The floor holds for every "
    "schedule and every choice from the row's implementations. Step: loss and gradients beside eager's, bit by bit."
)


def measure(key: str, effort: Effort) -> list[Row]:
    """One model with one menu."""
    what, name = next((w, key.removeprefix(f"{w}, ")) for w in (_PLANNED, _EXECUTED) if key.startswith(w))
    if what == _EXECUTED:
        row: Row = answer_of("_vocabulary_run", name, effort.limit_s, quiet=False)
        return [row | {"model": what}]
    subject = case("gpt2", next(menu for menu in MENUS if menu.name == name))
    point, _ = planned(subject, "floor", subject.floor_B, effort.limit_s)
    if point.time_s is None:
        close_B = subject.plain_B // 10 if effort.quick else subject.floor_B // 100
        found, _ = least_B(subject, math.inf, effort.limit_s, close_B)
        point = point if found is None else found
    say(f"{key}: {summary(point)}")
    return [
        {
            "model": what, "menu": name, "logits_B": _LOGITS_B, "plain_B": subject.plain_B, "floor_B": subject.floor_B,
            "smallest_B": point.peak_B, "observed_B": None, "overhead": point.overhead, "result": "-",
            "chosen": point.chosen,
        }
    ]  # fmt: skip


def tables(found: Found) -> list[str]:
    """One row per model and menu."""
    rows = rows_of(found, _KEYS)
    return [table("Large vocabularies", COLUMNS, [_line(row) for row in rows], len(rows), NOTE)] if rows else []


def _line(row: Row) -> list[object]:
    smallest_B, observed_B = row["smallest_B"], row["observed_B"]
    sizes = [_mb(row[k]) for k in ("logits_B", "plain_B", "floor_B")]
    ratios = ["none", "none"] if smallest_B is None else [f"{smallest_B / row[k]:.3f}" for k in ("floor_B", "logits_B")]
    chosen = ", ".join(f"{count} {kind}" for kind, count in sorted(row["chosen"].items())) or "none"
    return [
        row["model"], row["menu"], *sizes, "none" if smallest_B is None else _mb(smallest_B), *ratios,
        percent(row["overhead"]), "-" if observed_B is None else _mb(observed_B), row["result"], chosen,
    ]  # fmt: skip


def _mb(size_B: float) -> str:
    return f"{size_B / 1e6:.1f}"


VOCABULARY_PART = Part("vocabulary", _KEYS, measure, tables)
