"""A search over orders: what sets the height goes earlier, what changed is placed again: see `order_search.hpp`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import OrderSearch as Search
from lowtide.ir.packing import Packed, Packing
from lowtide.placers.attempt import Attempt, conduct
from lowtide.placers.base import AbstractPlacer, Watch
from lowtide.placers.greedy import place_greedily

_SLICE = 20_000  # work of one call into the core: how soon Ctrl-C is noticed


@final
@dataclass(frozen=True)
class OrderSearch(AbstractPlacer):
    """Greedy orders, then the search from the best of them, with the work that is left."""

    name: ClassVar[str] = "order-search"

    def refuses(self, packing: Packing) -> str | None:  # noqa: ARG002
        """Nothing."""
        return None

    def place(self, packing: Packing, *, seed: int = 0, work: int | None = None, watch: Watch | None = None) -> Packed:
        """Places; see the module."""

        def script(attempt: Attempt) -> None:
            attempt.run("greedy", place_greedily)
            attempt.run("orders", lambda a: search_orders(a, a.work_left))

        return conduct(Attempt(packing, seed, work, watch), self.name, self.refuses(packing), script)


def search_orders(attempt: Attempt, work: int) -> None:
    """Offers what the search finds, from the order that led to the incumbent, or that its offsets are in.

    Arguments:
        attempt: one with a placement.
        work: most of it to spend here.
    """
    offsets = attempt.offsets
    if offsets is None:
        raise AssertionError("a placement comes first")
    order = attempt.order or sorted(range(len(offsets)), key=offsets.__getitem__)
    search = Search(attempt.arcs.lifetimes, order, attempt.best_fit, attempt.seed, attempt.enough)
    before, done = attempt.work, False
    while not done and search.work < work:
        done = search.run(min(_SLICE, work - search.work))
        attempt.work = before + search.work
        attempt.offer(search.best_offsets, "order search")
        attempt.tick()
    attempt.stats |= {"orders_tried": search.tried, "orders_kept": search.kept}
