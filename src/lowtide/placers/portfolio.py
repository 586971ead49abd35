"""The default placer: cheap orders first, then better and better placements until one is good enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.packing import Packed, Packing
from lowtide.placers.attempt import Attempt, conduct
from lowtide.placers.base import AbstractPlacer, Watch
from lowtide.placers.exact import search_valleys
from lowtide.placers.greedy import place_greedily
from lowtide.placers.order_search import search_orders


@final
@dataclass(frozen=True)
class Best(AbstractPlacer):
    """All placers in turn, sharing one incumbent and one bound; stops at the bound or within the capacity asked for."""

    name: ClassVar[str] = "best"

    def refuses(self, packing: Packing) -> str | None:  # noqa: ARG002
        """Nothing."""
        return None

    def place(self, packing: Packing, *, seed: int = 0, work: int | None = None, watch: Watch | None = None) -> Packed:
        """Places; see the module."""

        def script(attempt: Attempt) -> None:
            attempt.run("greedy", place_greedily)
            attempt.run("exact", lambda a: search_valleys(a, a.work_left * 7 // 8))
            attempt.run("orders", lambda a: search_orders(a, a.work_left))

        return conduct(Attempt(packing, seed, work, watch), self.name, self.refuses(packing), script)


def place(packing: Packing, *, seed: int = 0, work: int | None = None, watch: Watch | None = None) -> Packed:
    """Places with the default portfolio.

    Arguments:
        packing: any valid one.
        seed, work, watch: as for `AbstractPlacer.place`.

    Returns: what `Best().place` gives.

    Raises:
        PackingError: if the packing makes no sense.
    """
    return Best().place(packing, seed=seed, work=work, watch=watch)
