"""The value that was not used for longest."""

from __future__ import annotations

from typing import ClassVar, final

from tests.oracle.ledger import Value
from tests.oracle.policies.base import AbstractScore, Scene


@final
class Lru(AbstractScore):
    """Least recently used first."""

    name: ClassVar[str] = "lru"
    sheds: ClassVar[bool] = False

    def score(self, scene: Scene, value: Value) -> float:  # noqa: ARG002
        return float(value.last_use)
