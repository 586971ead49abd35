"""DTR's score with neighbourhoods approximated by classes, as its prototype runs it.

Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021: `h_DTR^eq`.
"""

from __future__ import annotations

from typing import ClassVar, final

from tests.oracle.kinship import AbstractKinship, Classes
from tests.oracle.ledger import Value
from tests.oracle.policies.base import AbstractScore, Scene, per_byte_and_staleness


@final
class DtrClasses(AbstractScore):
    """Own cost and that of the classes of evicted neighbours, by size and staleness."""

    name: ClassVar[str] = "dtr-classes"
    kinship: ClassVar[type[AbstractKinship]] = Classes
    sheds: ClassVar[bool] = False

    def score(self, scene: Scene, value: Value) -> float:
        kinship = scene.kinship
        assert isinstance(kinship, Classes)
        return per_byte_and_staleness(value.cost_ns + kinship.neighbours_ns(value), scene, value)
