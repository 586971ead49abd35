"""The numbers that a plan is judged by, and the place where its peak is.

Units: `_B` bytes, `_s` seconds; overheads and gaps are fractions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lowtide.ir.budget import BudgetBreakdown
from lowtide.ir.compiled_names import said_of
from lowtide.ir.graph import Graph, Origin
from lowtide.ir.issue import issue_text
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import Environment, GraphBreak, PlanRecord, Status
from lowtide.ir.schedule import Boundary, Drop, Fetch, Run, Send, Step
from lowtide.ir.simulate import simulate
from lowtide.report.implementations import implementations
from lowtide.report.movement import describe_movement
from lowtide.units import format_B, format_percent, format_s

SHOWN_AS_NONE = 0.0005
"""A smaller gap or overhead is printed as 0.0 %."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Where a schedule lives in the most bytes.

    Arguments:
        step: index in the schedule.
        segment: name of the segment.
        what: the operator that runs there, or what else the step does.
        origin: the operator's place in the user's source; empty when the step runs none.
    """

    step: int
    segment: str
    what: str
    origin: Origin

    def __str__(self) -> str:
        place = " ".join(part for part in (self.origin.module, self.origin.source) if part)
        return f"step {self.step} ({self.segment}): {self.what}" + (f", {place}" if place else "")


@dataclass(frozen=True, slots=True)
class Headline:
    """A plan's claims, ready to be shown.

    Arguments:
        steps: how many the schedule has.
        floor_B: proved, bytes outside the graph included like everywhere here; 0 when none was proved.
        floor_operators: the operators that set the floor, with their source lines.
        bound_class: the schedules for which the bound holds.
        breakdown: where the bytes of the budget go.
        reserved_B: predicted, holes and what is set aside included; 0 where nothing is enforced.
        packing: height of the layout over the most bytes at once.
        graphs, breaks: how many graphs share the timeline, and where and why the model breaks into them.
        begun: from which other shapes' plan the search began, and what became of that plan; empty where from none.
        covers_inside, covers_outside: what the budget counts, and what it could not know.
        numerics: how far results may be from plain PyTorch's, and what was left out.
        exactness: what makes the captured program's results those of plain PyTorch, or why they may differ; empty where
            nothing was recorded.
        offloaded: what is copied between device and host; empty where nothing is.
        issue: how long the processor needs to issue the step; empty on CPU.
        unrepeated: operators that give other bits from equal inputs, and so run once.
        implementations: how many call sites run something else than the program, and what; empty where there is no
            choice.
    """

    name: str
    steps: int
    budget_B: int
    budget_kind: str
    peak_B: int
    peak: Peak
    keep_all_peak_B: int
    floor_B: int
    floor_class: str
    floor_operators: tuple[str, ...]
    time_s: float
    keep_all_time_s: float
    overhead: float
    bound_s: float
    bound_overhead: float
    gap: float
    bound_class: str
    status: str
    status_text: str
    solver: str
    covers_inside: tuple[str, ...]
    covers_outside: tuple[str, ...]
    environment: Environment
    breakdown: BudgetBreakdown
    reserved_B: int = 0
    packing: float = 1.0
    begun: str = ""
    graphs: int = 1
    breaks: tuple[str, ...] = ()
    numerics: str = Numerics.EXACT.value
    exactness: tuple[str, str] = ("", "")
    implementations: str = ""
    offloaded: str = ""
    unrepeated: tuple[str, ...] = ()
    issue: str = ""


def headline(record: PlanRecord) -> Headline:
    """Reads a plan's claims off its record.

    Arguments:
        record: a legal plan.
    """
    outcome, graph = record.outcome, record.graph
    return Headline(
        name=graph.name,
        steps=len(record.schedule.steps),
        budget_B=record.budget_B,
        budget_kind=record.budget_kind,
        peak_B=record.peak_B,
        peak=peak_of(record),
        keep_all_peak_B=record.keep_all_peak_B,
        floor_B=record.floor_B if outcome.floor_B else 0,
        floor_class=outcome.floor_class,
        floor_operators=tuple(describe_recipe(graph, r) for r in outcome.floor_recipes),
        time_s=record.time_s,
        keep_all_time_s=record.keep_all_time_s,
        overhead=record.overhead,
        bound_s=outcome.bound_s,
        bound_overhead=record.bound_overhead,
        gap=record.gap,
        issue=issue_text(graph, record.schedule),
        unrepeated=tuple(describe_recipe(graph, r) for r in graph.program if not graph.recipes[r].repeats),
        bound_class=outcome.bound_class,
        status=outcome.status.name,
        status_text=outcome.status.value,
        solver=outcome.solver,
        covers_inside=record.covers.inside,
        covers_outside=record.covers.outside,
        environment=record.environment,
        breakdown=record.breakdown,
        reserved_B=0 if record.layout is None else record.reserved_B,
        packing=1.0 if record.layout is None else record.layout.packing,
        begun=_begun(record),
        graphs=record.graphs,
        breaks=tuple(_told(b) for b in record.breaks),
        numerics=record.numerics.value + (f", without {', '.join(record.without)}" if record.without else ""),
        exactness=_exactness(record),
        implementations=str(implementations(record)),
        offloaded=describe_movement(record),
    )


def _exactness(record: PlanRecord) -> tuple[str, str]:
    """Label and text: what makes results exact, or every reason why they may not be; empty where none was recorded."""
    fidelity = record.fidelity
    proved = "; ".join(fidelity.established)
    if fidelity.doubts:
        listed = "\n".join(f"{i}. {doubt}" for i, doubt in enumerate(fidelity.doubts, 1))
        return "may differ", f"from {fidelity.reference}:\n{listed}"
    if not proved:
        return "", ""
    if record.numerics is not Numerics.EXACT:
        return "captured", f"exactly as {fidelity.reference}: {proved}; implementations may round otherwise"
    return "exact", f"the same bits as {fidelity.reference}, proved by: {proved}"


def _begun(record: PlanRecord) -> str:
    """What a plan owes to another shape's, in words."""
    if not record.begun_from:
        return ""
    taken_over = record.outcome.stats.get("winner") == "start"
    what = "taken over; nothing faster was found" if taken_over else "a faster one was found"
    return f"the plan for {record.begun_from}; {what}"


def _told(found: GraphBreak) -> str:
    """A graph break for people: where, and why."""
    place = found.source or "a line that torch does not tell (TORCH_LOGS=graph_breaks shows it)"
    line = f" ({found.text.strip()})" if found.text.strip() else ""
    return f"{place}{line}: {found.cause}"


def _graphs(head: Headline) -> str:
    """Why a plan spans several graphs, or not the whole model; empty where it is one graph of all."""
    if head.graphs < 2 and not head.breaks:
        return ""
    causes = "\n".join(f"{i}. {text}" for i, text in enumerate(head.breaks, 1))
    counted = f"{head.graphs} graphs on one timeline; the code between them runs in the reserve"
    if head.graphs < 2:
        counted = "1 graph; the code outside it runs in the reserve"
    return f"{counted}\n{causes}".rstrip()


def peak_of(record: PlanRecord) -> Peak:
    """The step at which the plan lives in the most bytes."""
    steps = record.schedule.steps
    index = simulate(record.graph, record.schedule, record.machine).peak_step or 0  # a legal schedule has a step
    segment = max((s.segment for s in steps[: index + 1] if isinstance(s, Boundary)), default=0)
    step = steps[index]
    origin = record.graph.recipes[step.recipe].origin if isinstance(step, Run) else Origin()
    return Peak(index, record.graph.segments[segment].name, describe_step(record.graph, step), origin)


def describe_recipe(graph: Graph, recipe: int) -> str:
    """A recipe for people: its operator, submodule and source line."""
    found = graph.recipes[recipe]
    place = " ".join(part for part in (found.origin.module, found.origin.source) if part)
    return f"{shown_op(found.op)} ({place})" if place else shown_op(found.op)


def shown_op(op: str) -> str:
    """An operator's name for people: `aten.mm.default` is `aten.mm`; a compiled kernel, the operators in it."""
    return said_of(op).removesuffix(".default")


def describe_step(graph: Graph, step: Step) -> str:
    """A step for people, in a few words."""
    match step:
        case Run(recipe=recipe):
            return shown_op(graph.recipes[recipe].op)
        case Drop(value=value):
            return f"drop {graph.values[value].name}"
        case Send(value=value, memory=memory):
            return f"copy {graph.values[value].name} to {memory}"
        case Fetch(value=value, memory=memory):
            return f"copy {graph.values[value].name} back from {memory}"
        case Boundary(segment=segment):
            return f"start of {graph.segments[segment].name}"


def _counted(names: tuple[str, ...]) -> list[str]:
    """Each name once, in order, with how often it occurs where that is more than once."""
    return [name if count == 1 else f"{count} x {name}" for name, count in Counter(names).items()]


def _reserved(head: Headline) -> str:
    if not head.reserved_B:
        return ""
    return f"{format_B(head.reserved_B)} with holes and reserve (height {head.packing:.3f} x the most bytes at once)"


def _status(head: Headline) -> str:
    """What the status says; nobody is sent to compare with a bound that the plan has reached."""
    if head.status == Status.FEASIBLE.name and head.gap < SHOWN_AS_NONE:
        return "Legal, and as fast as the bound; the last digits of that were not proved within the work limit."
    return head.status_text


def headline_rows(head: Headline) -> tuple[tuple[str, str], ...]:
    """The headline as label and text, in reading order, for every printer to share."""
    gap = "no bound" if head.gap == float("inf") else format_percent(head.gap)
    bound = f"{format_s(head.bound_s)} ({format_percent(head.bound_overhead)} overhead), for {head.bound_class}"
    rows = [
        ("budget", f"{format_B(head.budget_B)}, {head.budget_kind}"),
        ("of which", str(head.breakdown)),
        ("predicted peak", f"{format_B(head.peak_B)} of {format_B(head.keep_all_peak_B)} when all is kept"),
        ("reserved", _reserved(head)),
        ("where", str(head.peak)),
        ("proved floor", f"{format_B(head.floor_B)}, for {head.floor_class}" if head.floor_B else "none"),
        ("set by", "; ".join(_counted(head.floor_operators))),
        ("predicted time", f"{format_s(head.time_s)}, {format_s(head.keep_all_time_s)} when all is kept"),
        ("with issuing", head.issue),
        ("overhead", format_percent(head.overhead)),
        ("numerics", head.numerics),
        head.exactness,
        ("implementations", head.implementations),
        ("offloaded", head.offloaded),
        ("not repeatable, run once", "; ".join(_counted(head.unrepeated))),
        ("proved bound", bound if head.bound_s > 0 else "none"),
        ("gap", gap),
        ("status", f"{head.status.lower()}: {_status(head)}"),
        ("solver", head.solver),
        ("began from", head.begun),
        ("graph breaks", _graphs(head)),
        ("covers", "; ".join(head.covers_inside)),
        ("outside", "; ".join(head.covers_outside)),
    ]
    return tuple((label, text) for label, text in rows if text)
