"""The result of comparing plain and planned steps, and the records of the steps that were compared. Needs no torch.

Units: `_B` bytes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from lowtide.ir.graph import Origin
from lowtide.units import format_B

Kind = Literal["plain", "planned", "captured", "float64"]
KINDS = ("output", "gradient", "parameter", "buffer", "optimizer state", "generator")
_WIDTH = 79
_LISTED = 8


class Task(msgspec.Struct, frozen=True):
    """Steps to take from the state in which the model was given.

    Arguments:
        kind: by whom: "plain" PyTorch; the "planned" step inside the budget; the program as it was "captured", without
            a plan and with its own operators; plain PyTorch in "float64".
        steps: how many, one after another.
        observed: whether every operator is noted.
        keep: names of results to write to `file`.
        hold: one result of one operator to write to `file`, of those that are observed.
        against: a file of another task, to compare the results in it with.
        number: of the task, for a file of its own.
    """

    kind: Kind
    steps: int = 2
    observed: bool = False
    keep: tuple[str, ...] = ()
    hold: Spot | None = None
    file: str = ""
    against: str = ""


class Spot(msgspec.Struct, frozen=True):
    """A value in an observed step: of which graph in the order in which they run, its number there, and which time."""

    step: int
    graph: int
    value: int
    time: int = 0


class Content(msgspec.Struct, frozen=True):
    """A tensor that an operator read or made.

    Arguments:
        value: its number in the captured graph; -1 in plain PyTorch.
        arrives: whether the caller gives it to the backward: a gradient of one of the graph's outputs.
    """

    value: int
    name: str
    digest: str
    arrives: bool = False


class Ran(msgspec.Struct, frozen=True):
    """One run of an operator.

    Arguments:
        operator: by torch's name, "aten.addmm.default".
        origin: the user's module and line.
        step: from 0.
        graph: in the order in which graphs run in a step; -1 in plain PyTorch.
        segment: "forward", "backward".
    """

    operator: str
    origin: Origin
    step: int
    graph: int
    segment: str
    made: tuple[Content, ...]
    read: tuple[Content, ...] = ()


class Difference(msgspec.Struct, frozen=True):
    """A result that is not the same.

    Arguments:
        name: "output.loss", "gradient of h.0.mlp.weight".
        step: from 1.
        elements: how many differ; None where that is not known.
        of: how many there are.
        largest: absolute difference of two elements; 0 where only signs of zeros differ, or what is no number.
        distance, norm: of the difference, and of plain PyTorch's result.
        note: what else is not the same: dtype, shape, order in memory.
    """

    name: str
    step: int
    elements: int | None = None
    of: int = 0
    largest: float = 0.0
    distance: float = 0.0
    norm: float = 0.0
    resolution: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        if self.note:
            return self.note
        if self.elements is None:
            return "not the same"
        return f"{self.elements:,} of {self.of:,} elements, by {self.largest:.3g} at most"


class FirstOperator(msgspec.Struct, frozen=True):
    """The first operator at which two steps part.

    Arguments:
        operator: by torch's name.
        value: which of its results.
        origin: the user's module and line.
        segment, step: where it ran; steps count from 1.
        cause: in words: what was the same before it, and what that means.
        difference: how its result differs; None where there is nothing to compare it with.
    """

    operator: str
    value: str
    origin: Origin
    segment: str
    step: int
    cause: str
    difference: Difference | None = None


class Machine(msgspec.Struct, frozen=True):
    """The machine of a verification: results hold for this processor, this number of threads and these releases."""

    device: str = ""
    capability: str = ""
    threads: int = 0
    torch: str = ""
    python: str = ""
    lowtide: str = ""


class PlanFacts(msgspec.Struct, frozen=True):
    """The plan of a step that was verified.

    Arguments:
        budget_B, budget_kind, reserved_B, graphs: as `PlanRecord` has them.
        plain_B: bytes that the step takes without lowtide, as predicted.
    """

    budget_B: int = 0
    budget_kind: str = ""
    reserved_B: int = 0
    plain_B: int = 0
    graphs: int = 0


class Taken(msgspec.Struct, frozen=True):
    """Steps that were taken.

    Arguments:
        before: digests of the state from which they were taken, by name.
        after: per step, digests of everything that is compared, by name.
        size_B: bytes of each.
        ran: what was observed.
        apart: results that differ from those of the file that was named.
        held: how the held result differs from that of the file.
        plan: None for plain PyTorch.
    """

    before: dict[str, str]
    after: tuple[dict[str, str], ...]
    size_B: dict[str, int]
    ran: tuple[Ran, ...] = ()
    apart: tuple[Difference, ...] = ()
    held: Difference | None = None
    plan: PlanFacts | None = None
    machine: Machine = Machine()


class Verification(msgspec.Struct, frozen=True):
    """The result of comparing plain and planned steps, on this machine and for these inputs.

    Arguments:
        equal: whether everything that was compared has the same bits, and plain PyTorch agrees with itself.
        plain_agrees: whether two plain steps from the same state have the same bits. Where they have not, nothing can
            be verified.
        steps: how many were taken one after another; everything was compared after each.
        compared: how many results of each kind: outputs, gradients, parameters, buffers, generators.
        compared_B: bytes of all of them.
        differences: results that are not the same, of the first step in which any is not.
        first: the first operator that differs; None where nothing does, or no operator could be made out.
        note: why no operator is named, and what else there is to say.
        within_level: below "exact", whether every result is within four times plain PyTorch's own distance from
            float64: what one operator is held to. Rounding adds up over a deep network, which may exceed it. None where
            nothing differs, at "exact", and where that could not be found out.
        plan: the active plan; None where plain PyTorch does not agree with itself.
        numerics: how far results may be from plain PyTorch's.
    """

    equal: bool
    plain_agrees: bool
    steps: int
    compared: dict[str, int]
    compared_B: int
    differences: tuple[Difference, ...] = ()
    first: FirstOperator | None = None
    note: str = ""
    within_level: bool | None = None
    plan: PlanFacts | None = None
    numerics: str = "exact"
    machine: Machine = Machine()

    @property
    def kept(self) -> bool:
        """Whether the promise was kept: the same bits where they are promised, which below "exact" they are not."""
        return self.equal or (self.plain_agrees and self.numerics != "exact")

    def to_json(self) -> str:
        """Everything as one JSON object."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    def explain(self) -> str:
        """Says what was compared, with which result, and where the steps first differ; in 79 columns."""
        return "\n".join(_explained(self))


def _explained(found: Verification) -> Iterator[str]:
    steps = f"{found.steps} step{'' if found.steps == 1 else 's'}"
    if found.equal:
        yield f"Equal: {steps} inside the budget gave the bits of plain PyTorch."
    elif not found.plain_agrees:
        yield f"Not verified: plain PyTorch gave other bits in {steps} from the same state."
    else:
        yield f"Different: {steps} inside the budget did not give the bits of plain PyTorch."
    if found.plan is not None:
        plan = found.plan
        share = f" of {format_B(plan.plain_B)} without lowtide" if plan.plain_B else ""
        graphs = f"{plan.graphs} graph{'' if plan.graphs == 1 else 's'}"
        yield from _row(
            "budget",
            f"{format_B(plan.budget_B)}{share}, {plan.budget_kind}; {format_B(plan.reserved_B)} used; {graphs}; "
            f"numerics {found.numerics}",
        )
    kinds = ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in found.compared.items())
    yield from _row("compared", f"{kinds} ({format_B(found.compared_B)}) after each step")
    if found.plain_agrees:
        yield from _row("reference", "plain PyTorch, which agrees with itself")
    machine = found.machine
    yield from _row(
        "machine",
        f"{machine.device}, {machine.capability}, {machine.threads} thread{'' if machine.threads == 1 else 's'}, torch "
        f"{machine.torch}, Python {machine.python}, lowtide {machine.lowtide}",
    )
    if found.first is not None:
        yield ""
        yield from _where_in_words(found.first)
    if found.note:
        yield ""
        yield from textwrap.wrap(found.note, _WIDTH)
    if found.differences:
        yield ""
        yield from _listed(found.differences)


def _where_in_words(first: FirstOperator) -> Iterator[str]:
    yield f"The first operator that differs: {first.operator}"
    if first.origin.module:
        yield from _row("module", first.origin.module)
    if first.origin.source:
        yield from _row("line", f"{first.origin.source}  {first.origin.text}")
    yield from _row("where", f"{first.segment} of step {first.step}{f', {first.value}' if first.value else ''}")
    if first.difference is not None:
        yield from _row("differs in", str(first.difference))
    yield from _row("why", first.cause)


def _listed(differences: Sequence[Difference]) -> Iterator[str]:
    step = differences[0].step
    when = f"after step {step}" if step else "before the first step"
    yield f"Not the same {when}: {len(differences)}"
    for d in differences[:_LISTED]:
        yield from textwrap.wrap(f"{d.name}: {d}", _WIDTH, initial_indent="  ", subsequent_indent="    ")
    if len(differences) > _LISTED:
        yield f"  and {len(differences) - _LISTED} more"


def _row(name: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, _WIDTH, initial_indent=f"  {name:<11}", subsequent_indent=" " * 13)
