"""Two steps compared bit by bit, and the first operator at which they part. Needs no torch.

Here it is decided which steps are taken, and what follows from them. `api/verify/verify.py` takes them in this process,
`cli/verify.py` in one for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from lowtide.ir.numerics import Numerics
from lowtide.results.verification import (
    KINDS,
    Content,
    Difference,
    FirstOperator,
    Ran,
    Spot,
    Taken,
    Task,
    Verification,
)

_TIMES = 4.0  # as far from plain PyTorch as plain PyTorch is from float64, or a little more
_LOSSY = 0.05  # of a tensor's norm

Take = Callable[[Task], Taken]


def compared(take: Take, numerics: Numerics, steps: int, folder: Path) -> Verification:
    """Takes plain and planned steps from the same state and compares them.

    Arguments:
        take: carries out a task; each begins from the same state.
        numerics: of the planned step.
        steps: how many are taken one after another.
        folder: empty, for results that differ.

    Returns: what was found. Where everything agrees three tasks are carried out, else a few more, that find out where.
    """
    plain, again = take(Task("plain", steps)), take(Task("plain", steps))
    found = _equal(plain, numerics, steps)
    if apart := _apart(plain, again, prepared=True):
        return _with_itself(take, found, apart)
    planned = take(Task("planned", steps))
    found = msgspec.structs.replace(found, plan=planned.plan)
    apart = _apart(plain, planned)
    if not apart:
        return found
    kept = str(folder / "plain")
    names = tuple(d.name for d in apart)
    traced = take(Task("plain", apart[0].step, observed=True, keep=names, file=kept))
    seen = take(Task("planned", apart[0].step, observed=True, against=kept))
    measured = {(d.step, d.name): d for d in seen.apart}
    differences = tuple(measured.get((d.step, d.name), d) for d in apart)
    first, note = _where(take, traced, seen, apart[0].step, folder)
    if not seen.apart:
        note = "When the planned step was observed, it had plain PyTorch's bits: the difference comes and goes. " + note
    within = None
    if numerics is not Numerics.EXACT:
        within, why = _within(take, differences, numerics, kept)
        note = f"{note} {why}".strip()
    return msgspec.structs.replace(
        found, equal=False, differences=differences, first=first, note=note, within_level=within
    )


def _equal(plain: Taken, numerics: Numerics, steps: int) -> Verification:
    """The verification where nothing differs from some plain steps."""
    counts = Counter(_kind(name) for name in plain.after[-1])
    return Verification(
        equal=True,
        plain_agrees=True,
        steps=steps,
        compared={kind: counts[kind] for kind in KINDS if counts[kind]},
        compared_B=sum(plain.size_B.values()),
        numerics=numerics.value,
        machine=plain.machine,
    )


def _kind(name: str) -> str:
    return next(kind for kind in KINDS if name.startswith(kind))


def _apart(one: Taken, other: Taken, prepared: bool = False) -> tuple[Difference, ...]:
    """The differences: of the state before, where that is compared, or else of the first step that has any."""
    stages = [(0, one.before, other.before)] if prepared else []
    stages += [(i, a, b) for i, (a, b) in enumerate(zip(one.after, other.after, strict=True), 1)]
    for step, a, b in stages:
        names = dict.fromkeys((*a, *b))
        found = tuple(_unlike(name, step, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name))
        if found:
            return found
    return ()


def _unlike(name: str, step: int, one: str | None, other: str | None) -> Difference:
    if one is None or other is None:
        return Difference(name, step, note="there is none on one side")
    facts, _, _ = one.rpartition(" ")
    others, _, _ = other.rpartition(" ")
    return Difference(name, step, note="" if facts == others else f"{facts} and {others}")


def _with_itself(take: Take, found: Verification, apart: tuple[Difference, ...]) -> Verification:
    """Plain PyTorch does not agree with itself: which results, and from which operator on."""
    first, note = None, "no operator could be made out"
    if not apart[0].step:
        note = (
            "the model or its inputs are not the same when they are made a second time: seed whatever they are made "
            "of (torch.manual_seed) in the function that makes them"
        )
    else:
        one, other = (take(Task("plain", apart[0].step, observed=True)) for _ in range(2))
        for a, b in zip(one.ran, other.ran, strict=False):
            if a.operator != b.operator or [c.digest for c in a.made] != [c.digest for c in b.made]:
                cause = "Everything before it was the same in two plain steps from the same state."
                first = _first(a, a.made[0].name if a.made else "", cause)
                note = (
                    "what it computes hangs on something that is not part of the state that was given back: a clock, a "
                    "generator of the model's own without a seed, a counter outside the model, or an operator that is "
                    "not deterministic (torch.use_deterministic_algorithms(True) finds those)"
                )
                break
    note = f"Plain PyTorch does not agree with itself, so nothing can be verified: {note}."
    return msgspec.structs.replace(found, equal=False, plain_agrees=False, differences=apart, first=first, note=note)


def _where(take: Take, plain: Taken, planned: Taken, steps: int, folder: Path) -> tuple[FirstOperator | None, str]:
    """The first operator that differs: from the captured program's, or in that program from plain PyTorch's."""
    captured = take(Task("captured", steps, observed=True))
    found = _part_of_plan(planned.ran, captured.ran)
    if found is not None:
        run, content, cause, spot = found
        difference = None
        if spot is not None:
            held = str(folder / "held")
            take(Task("captured", steps, observed=True, hold=msgspec.structs.replace(spot, time=0), file=held))
            difference = take(Task("planned", steps, observed=True, hold=spot, against=held)).held
        return _first(run, content.name, cause, difference), ""
    if not _apart(plain, captured):
        return None, (
            "Every operator of the planned step has the same results as in the program that was captured, which gives "
            "plain PyTorch's bits: what differs came about between the graphs or in autograd's sums."
        )
    parted = _part_of_capture(captured, plain)
    if parted is not None:
        run, content, cause = parted
        return _first(run, content.name, cause), ""
    return None, (
        "The plan is carried out as it was captured, and everything that the captured program computes occurs in plain "
        "PyTorch's step too: what differs came about between the graphs, or where autograd adds gradients up."
    )


def _first(run: Ran, value: str, cause: str, difference: Difference | None = None) -> FirstOperator:
    return FirstOperator(run.operator, value, run.origin, run.segment, run.step + 1, cause, difference)


def _part_of_plan(planned: Sequence[Ran], captured: Sequence[Ran]) -> tuple[Ran, Content, str, Spot | None] | None:
    """The first run in which a planned step differs from its own program: in a result, or in what it reads."""
    right = {(run.step, run.graph, c.value): c.digest for run in captured for c in run.made}
    given = {(run.step, run.graph, c.value): c.digest for run in captured for c in run.read}
    own: dict[tuple[int, int, int], str] = {}  # values that only this plan's implementations have, and what made them
    times: Counter[tuple[int, int, int]] = Counter()
    for run in planned:
        for c in run.read:
            key = (run.step, run.graph, c.value)
            if key in right and right[key] != c.digest:
                cause = f"It reads {c.name}, which was right when it was made and has been overwritten since."
                return run, c, cause, None
            if key not in right and given.get(key, c.digest) != c.digest:
                cause = f"It is given {c.name}, which differs already: it comes from between graphs, or from autograd."
                return run, c, cause, None
        for c in run.made:
            key = (run.step, run.graph, c.value)
            if right.get(key, c.digest) != c.digest:
                cause = "What it reads is the same in the program as it was captured, and its result is not."
                makers = [own[k] for r in run.read if (k := (run.step, run.graph, r.value)) in own]
                if makers:
                    cause = (
                        f"Its result is not that of the program as it was captured. It reads what {makers[0]} made, "
                        "which that program has not: the fault lies there or here."
                    )
                return run, c, cause, Spot(*key, times[key])
            times[key] += 1
            if key not in right:
                own[key] = run.operator
    return None


def _part_of_capture(captured: Taken, plain: Taken) -> tuple[Ran, Content, str] | None:
    """The first operator of the captured program whose result plain PyTorch never had, though it had what it reads."""
    known = {c.digest for run in plain.ran for c in (*run.made, *run.read)}
    made: set[tuple[int, int, int]] = set()
    strange: set[tuple[int, int, int]] = set()
    for run in captured.ran:
        for c in run.read:
            if c.arrives and (run.step, run.graph, c.value) not in made and c.digest not in known:
                cause = (
                    f"It is given {c.name}, a gradient that plain PyTorch never had: it comes from between the graphs, "
                    "or autograd added it up in another order."
                )
                return run, c, cause
        foreign = [c for c in run.made if c.digest not in known]
        agreed = not any((run.step, run.graph, c.value) in strange for c in run.read)
        made.update((run.step, run.graph, c.value) for c in run.made)
        strange.update((run.step, run.graph, c.value) for c in foreign)
        if foreign and agreed and len(foreign) == len(run.made):
            cause = (
                "The program that was captured does not have plain PyTorch's bits, whatever the plan: this is its "
                "first operator whose result does not occur in plain PyTorch's step, though what it reads does."
            )
            return run, foreign[0], cause
    return None


def _within(take: Take, differences: Iterable[Difference], numerics: Numerics, kept: str) -> tuple[bool | None, str]:
    """Whether differences are no larger than a level admits, measured by how far plain PyTorch is from float64.

    Returns: that, or None; and what there is to say.
    """
    found = list(differences)
    if any(d.elements is None or d.note for d in found):
        return False, "Some results differ in more than rounding."
    try:
        truth = {(d.step, d.name): d for d in take(Task("float64", found[0].step, against=kept)).apart}
    except Exception as error:  # many a model cannot be run in float64
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return None, f'Whether that is within numerics="{numerics.value}" is not known: in float64 it fails ({reason}).'
    for d in found:
        exact = truth.get((d.step, d.name))
        limit = _TIMES * max(0.0 if exact is None else exact.distance, d.resolution * d.norm)
        if numerics is Numerics.LOSSY:
            limit = max(limit, _LOSSY * d.norm)
        if not d.distance <= limit:
            return False, (
                f"{d.name} is further from plain PyTorch than one operator may be at this level: by {d.distance:.3g} "
                f"(norm of the difference; {limit:.3g} is {_TIMES:g} times as far as plain PyTorch is from float64). "
                "Rounding adds up over a deep network: judge by what you train for."
            )
    return True, (
        f'That is within numerics="{numerics.value}": no result is further from plain PyTorch than {_TIMES:g} times as '
        "far as that is from float64."
    )
