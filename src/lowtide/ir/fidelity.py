"""The record of what makes a capture's results those of plain PyTorch, and of what may make them differ."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

PLAIN = "plain PyTorch"
COMPILED = "torch.compile(model)"
COMPILED_EAGER = 'torch.compile(model, backend="eager")'


class Doubt(msgspec.Struct, frozen=True):
    """A reason why results may differ from the reference's.

    Arguments:
        cause: in words.
        remedy: what the user can do about it.
        source: "model.py:88" with its folder; empty where it is not known.
    """

    cause: str
    remedy: str
    source: str = ""

    def __str__(self) -> str:
        place = f"{self.source}: " if self.source else ""
        return f"{place}{self.cause}. {self.remedy}"


class Fidelity(msgspec.Struct, frozen=True):
    """What is known of how a capture's results compare with those of the same model without lowtide.

    Arguments:
        established: facts that make them equal bit for bit, in words; empty where nothing was recorded.
        doubts: reasons why they may differ; empty where they are equal.
        reference: what they are compared with.
    """

    established: tuple[str, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    reference: str = PLAIN

    @property
    def is_exact(self) -> bool:
        """Whether nothing is known that could make results differ."""
        return not self.doubts

    def doubted(self, doubts: Iterable[Doubt]) -> Fidelity:
        """The same with more doubts, each once."""
        return msgspec.structs.replace(self, doubts=tuple(dict.fromkeys((*self.doubts, *doubts))))


def all_together(parts: Iterable[Fidelity], established: Iterable[str] = ()) -> Fidelity:
    """The record of several captures that run in one step: what holds of each, and every doubt, once.

    Arguments:
        established: what was found of the step as a whole; it comes first.
    """
    found = list(parts)
    facts = dict.fromkeys((*established, *(fact for part in found for fact in part.established)))
    doubts = dict.fromkeys(doubt for part in found for doubt in part.doubts)
    reference = found[0].reference if found else PLAIN
    return Fidelity(tuple(facts), tuple(doubts), reference)
