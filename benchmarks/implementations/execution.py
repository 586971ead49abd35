"""MONeT's networks and GPT-2 executed on this machine at small batches, per level of numerics.

Units: `_B` bytes.
"""

from __future__ import annotations

import json

from benchmarks.implementations.problems import MONET
from benchmarks.implementations.rows import LEVELS
from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of
from benchmarks.results_file import table
from benchmarks.runner import answer_of

NETWORKS = (*MONET, "gpt2")
ALPHAS = (0.5, 0.2)
LIMIT_s = 20.0
_KEYS = tuple(f"{network}, {menu.name}" for network in NETWORKS for menu in LEVELS)
COLUMNS = (
    "network", "implementations", "alpha", "budget, MB", "of keep-all", "predicted overhead", "measured overhead",
    "spread over rounds", "predicted peak, MB", "observed peak, MB", "error", "departures and spills", "three steps",
    "others than the program's",
)  # fmt: skip
NOTE = (
    "On the processor above, operators measured, in the arena of that budget. Alpha: of the way from the proved floor to keep-all, "
    "both with the program's own implementations. Overhead: over keeping everything with them; measured as the median of "
    "interleaved forward-and-backward steps. Peak: most live bytes in the arena, parameters, batch, momentum and reserve "
    "included; its error is over what a plan can change. Three steps of SGD with momentum from the same state and seed: `torch.equal` with eager in losses, "
    "parameters, buffers and generator, or else how far off eager's state is: the norm of the distance over that of the way that "
    "three steps went; where nothing is dropped out, beside it how far eager and the plan are from the same steps in float64. "
    "MONeT's loss is the sum of all outputs, whose gradients behind batch norm cancel nearly to nothing, so that what is left "
    "of them is rounding in eager as well. Batches: ResNet-50 8, VGG-16 8, GoogLeNet and MobileNet-V2 16 images of 224 x 224, "
    "U-Net 1 of 208 x 304, a GPT-2 of 4 layers 6 x 256 tokens. Other work kept both cores busy meanwhile (load 3 to 10): bytes "
    "and bits do not depend on that, overheads do, and so do the seconds from which they were predicted."
)


def measure(key: str, effort: Effort) -> list[Row]:
    """One network with one menu, in a process of its own.

    Raises:
        RuntimeError: if it failed.
    """
    network, menu = key.split(", ")
    alphas = ALPHAS[:1] if effort.quick else ALPHAS
    limit_s = min(LIMIT_s, effort.limit_s)
    rows: list[Row] = answer_of(
        "_implementation_run", network, menu, json.dumps(alphas), effort.rounds, limit_s, quiet=False
    )
    return rows


def tables(found: Found) -> list[str]:
    """One row per network, menu and budget."""
    rows = rows_of(found, _KEYS)
    return [table("Executed", COLUMNS, [_line(row) for row in rows], len(rows), NOTE)] if rows else []


def _line(row: Row) -> list[object]:
    head = [row["network"], row["menu"], row["alpha"], _mb(row["budget_B"]), f"{row['budget_B'] / row['plain_B']:.0%}"]
    if "predicted" not in row:
        smallest = row["smallest_B"]
        return [*head, "no plan" if smallest is None else f"no plan below {_mb(smallest)}", *["-"] * 8]
    chosen = ", ".join(f"{count} {kind}" for kind, count in sorted(row["chosen"].items())) or "none"
    return [
        *head, percent(row["predicted"]), percent(row["measured"]), row["spread"], _mb(row["peak_B"]),
        _mb(row["observed_B"]), f"{row['error']:+.2%}", row["spills"], row["result"], chosen,
    ]  # fmt: skip


def _mb(size_B: float) -> str:
    return f"{size_B / 1e6:.1f}"


def broken(found: Found) -> list[str]:
    """Rows at level exact whose bits are not eager's."""
    return [
        f"{row['network']}, {row['menu']}, alpha {row['alpha']}: {row['result']}"
        for row in rows_of(found, _KEYS)
        if row["menu"] != LEVELS[-1].name and row["result"] not in ("equal", "no plan")
    ]


EXECUTION_PART = Part("executed", _KEYS, measure, tables)
