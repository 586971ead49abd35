"""What a capture says of its own results: what was found out while it was traced, as a record that lives with it."""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.capture.origin import place
from lowtide.device.compile_queries import Answers, Place, answers_so_far, line_of
from lowtide.device.known_branches import Fact, facts_so_far
from lowtide.device.python_kernels import Traced
from lowtide.ir.fidelity import COMPILED_EAGER, PLAIN, Doubt, Fidelity

_MEND = 'Mend the place (TORCH_LOGS=graph_breaks shows why), or accept other roundings with numerics="reassociated"'


@dataclass(frozen=True)
class Read:
    """What Dynamo met while it read the code of a graph. It reads once; the graph may be captured several times.

    Arguments:
        answers: to the model's questions; None where `torch.compile` called the backend.
        facts: what the graph takes for granted of the call's arguments.
    """

    answers: Answers | None
    facts: tuple[Fact, ...]

    @classmethod
    def now(cls) -> Read:
        """Of the code that has been read on this thread."""
        return cls(answers_so_far(), facts_so_far())


def fidelity_of(read: Read, traced: Traced) -> Fidelity:
    """The record of a graph that is being captured.

    Arguments:
        read: what was found when its code was read.
        traced: what happened to its operators.
    """
    answers = read.answers
    doubts = tuple(
        Doubt(
            f"{name} is traced as arithmetic of torch's own in Python where sizes vary, which rounds otherwise",
            'Give every batch the same shape, pass dynamic=False, or accept that with numerics="reassociated"',
        )
        for name in traced.in_python
    )
    if answers is None:  # torch.compile called the backend: there every model hears the truth
        return Fidelity(("the model hears that it is being compiled, as there",), doubts, COMPILED_EAGER)
    told = tuple(Doubt(_TOLD, _MEND, _line(p)) for p in dict.fromkeys(answers.told))
    compiled = (compiled_already(name, _line(where)) for name, where in answers.compilations.items())
    cached = (
        Doubt(
            f"{name} is under a cache and {what}: plain PyTorch keeps its result, a captured graph would compute it "
            "anew in every step",
            _UNCACHE,
            _line(where),
        )
        for what, found in (
            ("draws random numbers", answers.draws),
            ("its result is changed in place", answers.changed),
        )
        for name, where in found.items()
    )
    return Fidelity(tuple(_established(answers, read.facts)), (*told, *compiled, *cached, *doubts), PLAIN)


_UNCACHE = "Call it once, in the model's __init__, and keep what it returns as a buffer"


def _line(where: Place) -> str:
    return place(*line_of(where)) if where else ""


def compiled_already(name: str, source: str = "") -> Doubt:
    """The doubt about code that the user has compiled: lowtide runs the operators that it is written with."""
    return Doubt(
        f"{name} is compiled by torch.compile, whose kernels round otherwise than the operators that are captured here",
        'Do not compile it, or accept other roundings with numerics="reassociated"',
        source,
    )


_TOLD = (
    "the model asks here whether it is being compiled and was told yes, because what it does otherwise cannot be "
    "captured as one graph; it may compute something else then"
)


def _established(answers: Answers, facts: tuple[Fact, ...]) -> list[str]:
    """Facts about the model's own code."""
    found = []
    if denied := dict.fromkeys(place(*line_of(p)) for p in answers.denied):
        found.append(f"the question whether it is being compiled was answered no ({_listed(list(denied))})")
    if facts:
        found.append(
            "branches on tensors are those that the call's arguments lead to, and are worked out again at every call "
            f"({_listed([place(*f.where) for f in facts if f.where[0]])})"
        )
    return found


def _listed(places: list[str]) -> str:
    """The first few of a list of places."""
    distinct = list(dict.fromkeys(places))
    more = f" and {len(distinct) - _FEW} more" if len(distinct) > _FEW else ""
    return ", ".join(distinct[:_FEW]) + more


_FEW = 4
