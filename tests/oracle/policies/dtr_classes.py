"""DTR's score with neighbourhoods approximated by classes, as its prototype runs it.

Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021: `h_DTR^eq`.
"""

from __future__ import annotations

from typing import ClassVar, final

from tests.oracle.ledger import Value
from tests.oracle.neighbourhood import AbstractNeighbourhood, Classes
from tests.oracle.policies.base import AbstractScore, Scene, per_byte_and_staleness


@final
class DtrClasses(AbstractScore):
    """Own cost and that of the classes of evicted neighbours, by size and staleness."""

    name: ClassVar[str] = "dtr-classes"
    neighbourhood: ClassVar[type[AbstractNeighbourhood]] = Classes
    sheds: ClassVar[bool] = False

    def score(self, scene: Scene, value: Value) -> float:
        neighbourhood = scene.neighbourhood
        assert isinstance(neighbourhood, Classes)
        return per_byte_and_staleness(value.cost_ns + neighbourhood.neighbours_ns(value), scene, value)
