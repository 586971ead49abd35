"""Loss curves at level reassociated beside plain ones, and how far either is from float64."""

from __future__ import annotations

from benchmarks.parts import Effort, Found, Part, Row, rows_of, say
from benchmarks.results_file import table
from benchmarks.runner import answer_of

NETWORKS = ("U-Net", "GPT-2 of two layers")
STEPS = 100
ALPHAS = {"U-Net": 0.5, "GPT-2 of two layers": 0.1}
_AT = (1, 10, 25, 50, 75, 100)
COLUMNS = ("network", "step", "loss in float64", "plain", "plain's error", "planned", "planned's error")
ENDS = (
    "network", "largest error of a loss, plain", "planned", "weights after the last step, plain", "planned",
    "groups that run another implementation", "of these reassociated",
)  # fmt: skip
NOTE = (
    f"{STEPS} steps of SGD with momentum from the same state on the same batches: plainly in float64, plainly in float32, and in float32 inside "
    "a budget that makes it sum in another order, at level reassociated: of the way from the proved floor of that level to keep-all "
    f"{', '.join(f'{alpha:.0%} for {name}' for name, alpha in ALPHAS.items())}. Error: distance from float64. "
    "U-Net: width 16, 8 images of 64 x 64, GPT-2: 8 x 64 of 4,096 tokens, without dropout. No Adam: it gives gradients that are zero but for "
    "rounding, such as those of keys' biases, steps as long as any."
)
ENDS_NOTE = "Weights: the norm of the distance from float64's, over the norm of the way that float64's went."


def measure(key: str, effort: Effort) -> list[Row]:
    """One network in a process of its own.

    Raises:
        RuntimeError: if it failed.
    """
    row: Row = answer_of("_curves_run", key, 10 if effort.quick else STEPS, effort.limit_s, quiet=False)
    say(f"{key}: weights off by {row['weights']}, chosen {row['chosen']}")
    return [row]


def tables(found: Found) -> list[str]:
    """Some steps of every curve, and the largest errors."""
    rows = rows_of(found, NETWORKS)
    lines, ends = [], []
    for row in rows:
        exact, plain, planned = (row["losses"][k] for k in ("float64", "plain", "planned"))
        lines += [
            [row["network"], at, f"{exact[at - 1]:.9f}", *_beside(plain[at - 1], exact[at - 1]),
             *_beside(planned[at - 1], exact[at - 1])]
            for at in _AT if at <= len(exact)
        ]  # fmt: skip
        most = [max(abs(a - b) for a, b in zip(curve, exact, strict=True)) for curve in (plain, planned)]
        apart = [row["weights"][k] for k in ("plain", "planned")]
        chosen = ", ".join(f"{count} {kind}" for kind, count in sorted(row["chosen"].items())) or "none"
        ends.append([row["network"], *(f"{e:.1e}" for e in (*most, *apart)), chosen, row["reassociated"]])
    if not rows:
        return []
    return [
        table("Loss curves", COLUMNS, lines, len(lines), NOTE),
        table("How far from float64", ENDS, ends, len(rows), ENDS_NOTE),
    ]


def _beside(loss: float, exact: float) -> list[str]:
    return [f"{loss:.9f}", f"{abs(loss - exact):.1e}"]


CURVE_PART = Part("curves", NETWORKS, measure, tables)
