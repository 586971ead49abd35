"""Defines what every policy has: a name, what it has to know, and a choice of values to evict. Torch-free."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tests.oracle.capacity import AbstractCapacity, End
from tests.oracle.ledger import Call, Ledger, Value
from tests.oracle.neighbourhood import AbstractNeighbourhood, Solitary


@dataclass(slots=True)
class Scene:
    """What a policy sees. It changes nothing of it, except that it counts in `candidates` the values that it weighs.

    Arguments:
        movable: whether a resident root's bytes may be moved now.
        moved_B: slid so far.
        recompute_ns: of all recomputations so far.
        stuck: sliding was tried for this request, and did not make the place.
    """

    ledger: Ledger
    capacity: AbstractCapacity
    neighbourhood: AbstractNeighbourhood
    candidates: int = 0
    movable: Callable[[Value], bool] = lambda value: True  # noqa: ARG005
    moved_B: int = 0
    recompute_ns: int = 0
    stuck: bool = False

    def staleness(self, value: Value) -> int:
        """How long ago the value was used, in the ledger's nanoseconds."""
        return self.ledger.clock - value.last_use


class AbstractPolicy(abc.ABC):
    """Chooses what to evict. One instance serves one run.

    Attributes:
        name: as in the catalogue.
        neighbourhood: what it has to know about neighbours.
        sheds: rebuilt values that no handle keeps alive go with their last pin; else they are kept until they are
        chosen.
        slides: movable blocks are slid together where the free bytes suffice in pieces.
        slides_at_last: that is tried once more when no eviction helps.
        partitions: `end_for` depends on what it is asked.
        in_place: replayed operators write in place where the trace says so; else they make copies.
        passes: how often a replay plays a trace, as steps of one run; the last one counts.
        divergences: calls that were not where the record has them, of a policy that follows one.
    """

    name: ClassVar[str]
    neighbourhood: ClassVar[type[AbstractNeighbourhood]] = Solitary
    sheds: ClassVar[bool] = True
    slides: ClassVar[bool] = False
    slides_at_last: ClassVar[bool] = False
    partitions: ClassVar[bool] = False
    in_place: ClassVar[bool] = True
    moves: ClassVar[bool] = False
    passes: ClassVar[int] = 1
    divergences: int = 0

    @abc.abstractmethod
    def choose(self, scene: Scene, need_B: int) -> Sequence[Value]:
        """Values to evict now, all of them evictable, because a block of `need_B` finds no place.

        It is asked again until there is one. Nothing means that no eviction helps.
        """

    def end_for(self, cost_ns: int, size_B: int) -> End:  # noqa: ARG002
        """The end of the range for an output of `size_B` of a call of `cost_ns`."""
        return End.LOW

    def sends(self, scene: Scene, value: Value) -> bool:  # noqa: ARG002
        """Whether a chosen value is offloaded instead of being dropped."""
        return False

    def began(self, scene: Scene, name: str, inputs: Sequence[Value]) -> None:  # noqa: B027
        """An operator is about to run for the first time; its inputs may still be evicted."""

    def ended(self, scene: Scene, call: Call) -> None:  # noqa: B027
        """It has run."""

    def used(self, scene: Scene, name: str, inputs: Sequence[Value], cost_ns: int) -> None:  # noqa: B027
        """Instead: it made nothing that can be recomputed, and reads something that can."""

    def settled(self, scene: Scene, value: Value) -> None:  # noqa: B027
        """A root is about to become a leaf."""

    def evicted(self, scene: Scene, value: Value) -> None:  # noqa: B027
        """A value was evicted."""

    def restored(self, scene: Scene, value: Value) -> None:  # noqa: B027
        """An evicted value is resident again."""

    def died(self, scene: Scene, value: Value) -> None:  # noqa: B027
        """The last handle of a root is gone."""

    def step_ended(self, scene: Scene) -> None:  # noqa: B027
        """The program wrote to its parameters, or said that a step is over."""


class AbstractScore(AbstractPolicy):
    """Evicts the value of the least score, one at a time."""

    @abc.abstractmethod
    def score(self, scene: Scene, value: Value) -> float:
        """How much one would mind evicting this value; not negative."""

    def choose(self, scene: Scene, need_B: int) -> Sequence[Value]:  # noqa: ARG002
        """The value of the least score; of equals the one that became evictable last; a score of 0 ends the search.

        O(evictable values).
        """
        best: Value | None = None
        least = math.inf
        for value in scene.ledger.evictable.values():
            scene.candidates += 1
            score = self.score(scene, value)
            if score <= least:
                best, least = value, score
            if score == 0:
                break
        return () if best is None else (best,)


def per_byte_and_staleness(cost_ns: int, scene: Scene, value: Value) -> float:
    """A cost by how many bytes it would free and how long they were not used; infinite where that is nothing."""
    denominator = float(value.size_B) * float(scene.staleness(value))
    return float(cost_ns) / denominator if denominator > 0 else math.inf
