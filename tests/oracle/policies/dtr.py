"""DTR's score with exact neighbourhoods.

Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021: `h_DTR`.
"""

from __future__ import annotations

from typing import ClassVar, final

from tests.oracle.ledger import Value
from tests.oracle.neighbourhood import AbstractNeighbourhood, Regions
from tests.oracle.policies.base import AbstractScore, Scene, per_byte_and_staleness


@final
class Dtr(AbstractScore):
    """Own cost and that of all evicted ancestors and descendants, by size and staleness."""

    name: ClassVar[str] = "dtr"
    neighbourhood: ClassVar[type[AbstractNeighbourhood]] = Regions
    sheds: ClassVar[bool] = False

    def score(self, scene: Scene, value: Value) -> float:
        neighbourhood = scene.neighbourhood
        assert isinstance(neighbourhood, Regions)
        cost_ns = value.cost_ns + neighbourhood.ancestors_ns(value) + neighbourhood.descendants_ns(value)
        return per_byte_and_staleness(cost_ns, scene, value)
