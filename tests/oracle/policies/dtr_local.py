"""DTR's score without neighbours.

Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021: `h_DTR^local`.
"""

from __future__ import annotations

from typing import ClassVar, final

from tests.oracle.ledger import Value
from tests.oracle.policies.base import AbstractScore, Scene, per_byte_and_staleness


@final
class DtrLocal(AbstractScore):
    """Own cost by size and staleness."""

    name: ClassVar[str] = "dtr-local"
    sheds: ClassVar[bool] = False

    def score(self, scene: Scene, value: Value) -> float:
        return per_byte_and_staleness(value.cost_ns, scene, value)
