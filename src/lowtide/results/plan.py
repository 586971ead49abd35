"""`lowtide.Plan`: what a plan is to the person who holds it. Needs no torch."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from lowtide.arguments import check_file, whole, yes_or_no
from lowtide.ir.plan import Covers, PlanRecord, Status
from lowtide.ir.text import load_plan, save_graph, save_plan
from lowtide.report.explain import explain, render
from lowtide.report.html import write_html
from lowtide.report.notebook import plan_frame
from lowtide.units import format_B, format_percent, format_s


@dataclass(frozen=True)
class Plan:
    """A plan with its claims, made before the first step.

    Arguments:
        record: the plan as data.
        is_from_file: whether it was read from a file, which says what it likes.
    """

    record: PlanRecord
    is_from_file: bool = False

    @property
    def budget_B(self) -> int:
        """Bytes that were asked for."""
        return self.record.budget_B

    @property
    def budget_kind(self) -> str:
        """The treatment of an allocation past the budget: `"enforced"`, `"capped"` or `"accounted"`."""
        return self.record.budget_kind

    @property
    def peak_B(self) -> int:
        """Predicted most bytes at once."""
        return self.record.peak_B

    @property
    def reserved_B(self) -> int:
        """Predicted bytes reserved, holes and what is set aside included; the peak where nothing is enforced."""
        return self.record.reserved_B

    @property
    def floor_B(self) -> int:
        """No plan of this program lives in fewer bytes, with what is set aside; this is proved."""
        return self.record.floor_B

    @property
    def time_s(self) -> float:
        """Predicted seconds of one step."""
        return self.record.time_s

    @property
    def bound_s(self) -> float:
        """No plan of the bound's class within the budget is faster; this is proved."""
        return self.record.outcome.bound_s

    @property
    def gap(self) -> float:
        """`time_s / bound_s - 1`."""
        return self.record.gap

    @property
    def overhead(self) -> float:
        """Predicted extra time over keeping everything, as a fraction."""
        return self.record.overhead

    @property
    def status(self) -> Status:
        """The status with which planning ended."""
        return self.record.outcome.status

    @property
    def covers(self) -> Covers:
        """The lists of what the budget counts, and of what is outside."""
        return self.record.covers

    def explain(self, top: int = 20, *, verbose: bool = False, width: int | None = None) -> str:
        """Explains the plan: five lines that say whether it fits and at what cost, then the values that matter.

        Arguments:
            top: values to show, most bytes first.
            verbose: also where the bytes of the budget go, why each value has its fate, which implementations run,
                what is proved, and what the budget covers.
            width: columns of the page; those of the terminal if nothing is said, and 100 where there is none.
        """
        told = explain(self.record, whole("top", top, example="20"))
        yes_or_no("verbose", verbose)
        columns = shutil.get_terminal_size((100, 24)).columns if width is None else whole("width", width, example="80")
        return render(told, max(columns, 40), verbose)

    def save(self, path: str | Path) -> None:
        """Writes the plan, with the graph it is for, as versioned JSON; the file is replaced as a whole."""
        check_file(path)
        save_plan(self.record, path)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Reads a saved plan.

        Raises:
            PlanFileError: if the file is damaged, foreign, or of another version.
        """
        check_file(path)
        return Plan(load_plan(path), is_from_file=True)

    def save_graph(self, path: str | Path) -> None:
        """Writes the graph that the plan is for, profiled as it is, as versioned JSON; compressed if named `.gz`."""
        check_file(path)
        save_graph(self.record.graph, path)

    def to_html(self, path: str | Path) -> None:
        """Writes a report in one file that opens without a network."""
        check_file(path)
        write_html(self.record, path)

    def _repr_html_(self) -> str:
        """The plan as notebooks show it: five lines that answer, and memory over one step."""
        return plan_frame(self.record)

    def __repr__(self) -> str:
        return (
            f"Plan(peak {format_B(self.peak_B)} of {format_B(self.budget_B)} {self.budget_kind}, "
            f"{format_s(self.time_s)}, overhead {format_percent(self.overhead)}, gap {format_percent(self.gap)}, "
            f"{self.status.name})"
        )
