"""What was predicted next to what was observed.

Units: `_B` bytes, `_s` seconds; errors and overheads are fractions.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from lowtide.units import format_B, format_percent, format_s

PEAK_TOLERANCE = 0.03
"""How far a predicted peak may be from the observed one, over (peak - persistent)."""
RESERVED_TOLERANCE = 0.01
"""How far the predicted reserved bytes may be above the observed ones, over (reserved - persistent)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One network trained twice from the same seed, plainly and under a plan.

    Arguments:
        budget_B: what was asked, and `budget_kind` how it was kept.
        persistent_B: bytes that live for the whole step whatever the plan; errors are taken over the rest.
        predicted_peak_B: before the first step.
        observed_peak_B: from allocator events over one step under the plan.
        plain_peak_B: the same, observed over one plain step.
        predicted_time_s, keep_all_time_s: predicted seconds of a step under the plan and with everything kept.
        observed_time_s, plain_time_s: warm medians of a step under the plan and of a plain one.
        spread: of the plain step's own times, as a fraction: what no ratio here can resolve.
        bound_s: no schedule of `bound_class` is faster.
        losses, plain_losses: per step.
        predicted_reserved_B, observed_reserved_B: of an enforced budget, bytes reserved, holes included: before the
            first step, and ever since; else 0.
        misplaced_allocations: allocations of all steps that were not served where planned, or past the budget.
        states_equal: per name ("parameters", "buffers", "generator", ...), whether the final ones are bitwise equal.
    """

    name: str
    budget_B: int
    budget_kind: str
    persistent_B: int
    predicted_peak_B: int
    observed_peak_B: int
    plain_peak_B: int
    predicted_time_s: float
    keep_all_time_s: float
    observed_time_s: float
    plain_time_s: float
    spread: float
    bound_s: float
    bound_class: str
    losses: tuple[float, ...]
    plain_losses: tuple[float, ...]
    states_equal: tuple[tuple[str, bool], ...] = ()
    predicted_reserved_B: int = 0
    observed_reserved_B: int = 0
    misplaced_allocations: int = 0

    @property
    def peak_error(self) -> float:
        """Predicted minus observed peak, over the observed peak's bytes that a plan can change."""
        span_B = self.observed_peak_B - self.persistent_B
        return (self.predicted_peak_B - self.observed_peak_B) / span_B if span_B > 0 else 0.0

    @property
    def reserved_error(self) -> float:
        """Predicted minus observed reserved bytes, over the observed ones that a plan can change."""
        span_B = self.observed_reserved_B - self.persistent_B
        return (self.predicted_reserved_B - self.observed_reserved_B) / span_B if span_B > 0 else 0.0

    @property
    def overhead(self) -> float:
        """Measured extra time over the plain step."""
        return self.observed_time_s / self.plain_time_s - 1.0 if self.plain_time_s > 0 else 0.0

    @property
    def predicted_overhead(self) -> float:
        """Predicted extra time over keeping everything."""
        return self.predicted_time_s / self.keep_all_time_s - 1.0 if self.keep_all_time_s > 0 else 0.0

    @property
    def bound_overhead(self) -> float:
        """The least overhead that the bound leaves possible."""
        return self.bound_s / self.keep_all_time_s - 1.0 if self.keep_all_time_s > 0 else 0.0

    @property
    def gap(self) -> float:
        """How much slower than the proved bound the plan may be."""
        return max(0.0, self.predicted_time_s / self.bound_s - 1.0) if self.bound_s > 0 else float("inf")

    @property
    def unequal_steps(self) -> tuple[int, ...]:
        """The steps whose losses differ in any bit; a missing step differs, and NaN equals NaN."""
        longest = max(len(self.losses), len(self.plain_losses))
        pairs = [(_bits(self.losses, i), _bits(self.plain_losses, i)) for i in range(longest)]
        return tuple(i for i, (ours, plain) in enumerate(pairs) if ours != plain)

    @property
    def broken(self) -> tuple[str, ...]:
        """The promises that this run broke, in words; empty when all were kept."""
        found: list[str] = []
        if not self.losses or self.unequal_steps:
            found.append(f"losses differ in {len(self.unequal_steps)} of {len(self.plain_losses)} steps")
        found += [f"final {name} differ" for name, equal in self.states_equal if not equal]
        if self.observed_peak_B > self.budget_B:
            over_B = self.observed_peak_B - self.budget_B
            found.append(f"the observed peak is {format_B(over_B)} over the budget")
        if self.observed_reserved_B > self.budget_B:
            over_B = self.observed_reserved_B - self.budget_B
            found.append(f"the reserved bytes are {format_B(over_B)} over the budget")
        # More than predicted is no broken promise: the optimizer and the caller's code may use what a plan leaves free.
        if self.reserved_error > RESERVED_TOLERANCE:
            found.append(f"the predicted reserved bytes are off by {format_percent(self.reserved_error)}")
        if abs(self.peak_error) > PEAK_TOLERANCE:
            found.append(f"the predicted peak is off by {format_percent(self.peak_error)}")
        return tuple(found)


def _bits(losses: tuple[float, ...], step: int) -> str | None:
    return float(losses[step]).hex() if step < len(losses) else None


def comparison_rows(run: Comparison) -> tuple[tuple[str, str, str], ...]:
    """Label, predicted and observed, in reading order."""
    same = len(run.plain_losses) - len(run.unequal_steps)
    no_bound = run.gap == float("inf")
    rows = [
        ("budget", f"{format_B(run.budget_B)}, {run.budget_kind}", f"plain: {format_B(run.plain_peak_B)}"),
        ("peak", format_B(run.predicted_peak_B), format_B(run.observed_peak_B)),
        ("peak error over (peak - persistent)", "", format_percent(run.peak_error)),
        *_reserved_rows(run),
        ("time of a step", format_s(run.predicted_time_s), format_s(run.observed_time_s)),
        ("time without a budget", format_s(run.keep_all_time_s), format_s(run.plain_time_s)),
        ("overhead", format_percent(run.predicted_overhead), format_percent(run.overhead)),
        ("spread of plain against itself", "", format_percent(run.spread)),
        ("proved bound", "none" if no_bound else f"{format_s(run.bound_s)} ({format_percent(run.bound_overhead)})", ""),
        ("gap to the bound", "no bound" if no_bound else format_percent(run.gap), ""),
        ("losses equal, bit by bit", "", f"{same} of {len(run.plain_losses)} steps"),
    ]
    rows += [(f"final {name} equal", "", "yes" if equal else "NO") for name, equal in run.states_equal]
    return tuple(rows)


def _reserved_rows(run: Comparison) -> list[tuple[str, str, str]]:
    if not run.predicted_reserved_B:
        return []
    return [
        ("reserved, holes included", format_B(run.predicted_reserved_B), format_B(run.observed_reserved_B)),
        ("reserved error over (reserved - persistent)", "", format_percent(run.reserved_error)),
        ("allocations elsewhere than planned", "0", str(run.misplaced_allocations)),
    ]


def comparison_table(run: Comparison) -> Table:
    """The comparison as a rich table."""
    table = Table(title=run.name, title_justify="left", header_style="bold", pad_edge=False, box=None)
    table.add_column("", no_wrap=True)
    table.add_column("predicted", justify="right")
    table.add_column("observed", justify="right")
    for label, predicted, observed in comparison_rows(run):
        table.add_row(label, predicted, Text(observed, style="bold red" if observed == "NO" else ""))
    return table


def loss_table(run: Comparison, most: int = 12) -> Table:
    """The two loss curves side by side, evenly thinned to at most `most` steps, and every step that differs."""
    steps = len(run.plain_losses)
    stride = max(1, -(-steps // max(most, 1)))
    shown = sorted({*range(0, steps, stride), *([steps - 1] if steps else []), *run.unequal_steps[:most]})
    table = Table(header_style="bold", pad_edge=False, box=None)
    for heading in ("step", "plain loss", "lowtide loss", "bits"):
        table.add_column(heading, justify="right")
    unequal = set(run.unequal_steps)
    for step in shown:
        ours = f"{run.losses[step]:.9g}" if step < len(run.losses) else "missing"
        plain = f"{run.plain_losses[step]:.9g}" if step < steps else "missing"
        same = Text("differ", style="bold red") if step in unequal else Text("equal", style="green")
        table.add_row(str(step), plain, ours, same)
    return table
