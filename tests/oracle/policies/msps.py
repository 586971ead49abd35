"""Memory saved per second of recomputation.

Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS 2020; as in the comparison of
Kirisame et al., ICLR 2021: `h_MSPS`.
"""

from __future__ import annotations

import math
from typing import ClassVar, final

from tests.oracle.ledger import Value
from tests.oracle.neighbourhood import AbstractNeighbourhood, Regions
from tests.oracle.policies.base import AbstractScore, Scene


@final
class Msps(AbstractScore):
    """Own cost and that of evicted ancestors, by size; how stale a value is does not matter."""

    name: ClassVar[str] = "msps"
    neighbourhood: ClassVar[type[AbstractNeighbourhood]] = Regions
    sheds: ClassVar[bool] = False

    def score(self, scene: Scene, value: Value) -> float:
        neighbourhood = scene.neighbourhood
        assert isinstance(neighbourhood, Regions)
        cost_ns = value.cost_ns + neighbourhood.ancestors_ns(value)
        return float(cost_ns) / float(value.size_B) if value.size_B else math.inf
