"""The largest value."""

from __future__ import annotations

import math
from typing import ClassVar, final

from tests.oracle.ledger import Value
from tests.oracle.policies.base import AbstractScore, Scene


@final
class Size(AbstractScore):
    """Largest first."""

    name: ClassVar[str] = "size"
    sheds: ClassVar[bool] = False

    def score(self, scene: Scene, value: Value) -> float:  # noqa: ARG002
        return 1.0 / float(value.size_B) if value.size_B else math.inf
