"""The five lines that answer what somebody asks of a plan: does it fit, where is the peak, what does it cost, can it be
better, and what to do next. Each is
one line of 80 columns.
"""

from __future__ import annotations

from lowtide.errors import InfeasibleBudget
from lowtide.ir.plan import DEFAULT_WORK, Status
from lowtide.report.headline import SHOWN_AS_NONE, Headline
from lowtide.report.listing import place, shortened
from lowtide.units import format_B, format_percent, format_s

_NAME = 26  # characters of the operator at the peak, so that its line fits 80 columns
_MORE_WORK = 4 * DEFAULT_WORK


def answer(head: Headline) -> tuple[tuple[str, str], ...]:
    """Label and text of the five lines, in reading order.

    Arguments:
        head: of a legal plan.
    """
    return (
        ("fits" if needs_B(head) <= head.budget_B else "does not fit", _fits(head)),
        ("peak", _peak(head)),
        ("overhead", _overhead(head)),
        ("bound", _bound(head)),
        ("next", next_step(head)),
    )


def needs_B(head: Headline) -> int:
    """The bytes to hold against the budget: those reserved, or the peak where nothing is enforced."""
    return head.reserved_B or head.peak_B


def _fits(head: Headline) -> str:
    left_B = head.budget_B - needs_B(head)
    what = "reserved" if head.reserved_B else "at most"
    rest = f"{format_B(left_B)} free" if left_B >= 0 else f"{format_B(-left_B)} too many"
    return f"{format_B(needs_B(head))} {what} of a budget of {format_B(head.budget_B)} ({head.budget_kind}), {rest}"


def _peak(head: Headline) -> str:
    where = place(head.peak.origin.module, "", _NAME) or shortened(head.peak.what, _NAME)
    return f"{format_B(head.peak_B)} ({format_B(head.keep_all_peak_B)} when all is kept), {head.peak.segment}: {where}"


def _overhead(head: Headline) -> str:
    plain = format_s(head.keep_all_time_s)
    return f"{format_percent(head.overhead)}: {format_s(head.time_s)} a step, {plain} when all is kept"


def is_closed(head: Headline) -> bool:
    """Whether the plan is as fast as the bound, as far as the figures shown can tell."""
    return head.bound_s > 0 and head.gap < SHOWN_AS_NONE


def _bound(head: Headline) -> str:
    if head.bound_s <= 0:
        return "none was proved"
    least = f"{format_s(head.bound_s)} ({format_percent(head.bound_overhead)} overhead)"
    if is_closed(head):
        return f"{least}: no faster plan exists within this budget"
    return f"{least}: a plan can be faster by {format_percent(1 - head.bound_s / head.time_s)} at most"


def next_step(head: Headline) -> str:
    """What to do with the plan, in a sentence."""
    if needs_B(head) > head.budget_B:
        return f"raise the budget to {format_B(needs_B(head))}, or plan with a smaller batch"
    if head.status == Status.INTERRUPTED.name:
        return "planning was interrupted: run it again, or train with this plan"
    if head.exactness[0] == "may differ":
        return "results may differ from plain PyTorch's; --verbose says why"
    if head.overhead < SHOWN_AS_NONE:
        floor = f", no plan needs less than {format_B(head.floor_B)}" if head.floor_B else ""
        return f"train with it; a smaller budget may do{floor}"
    if is_closed(head) or head.bound_s <= 0:
        return "train with it; only a larger budget makes it faster"
    if head.status == Status.FEASIBLE.name:
        return f"train with it, or search longer for a faster one: --work {_MORE_WORK}"
    return "train with it"


def refusal(error: InfeasibleBudget) -> tuple[tuple[str, str], ...]:
    """The same for a budget that no plan fits: label and text of its lines.

    Arguments:
        error: as planning raised it; its message has the whole story.
    """
    rows = [("does not fit", f"a budget of {format_B(error.budget_B)}; nothing has been changed")]
    if error.floor_B:
        rows.append(("floor", f"{format_B(error.floor_B)}: proved, no plan needs less"))
    if error.smallest_B is not None:
        rows.append(("smallest", f"{format_B(error.smallest_B)}: a plan is known for that"))
        rows.append(("next", f"--budget {error.smallest_B}, a smaller batch, or a shorter sequence"))
    else:
        rows.append(("next", "a larger budget, a smaller batch, or a shorter sequence"))
    return tuple(rows)
