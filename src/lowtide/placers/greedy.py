"""One buffer after another, each into the gap that its placed neighbours leave, in the best of several orders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import place_in_order
from lowtide.ir.packing import Packed, Packing
from lowtide.placers.attempt import Attempt, conduct
from lowtide.placers.base import AbstractPlacer, Watch
from lowtide.placers.orders import ORDERS, order_by

_SHARE = 4  # of the work goes to the orders


@final
@dataclass(frozen=True)
class Greedy(AbstractPlacer):
    """Tries the orders in turn with first and best fit, until one reaches the bound.

    Arguments:
        orders: their names, of `ORDERS`.
    """

    orders: tuple[str, ...] = tuple(ORDERS)
    name: ClassVar[str] = "greedy"

    def refuses(self, packing: Packing) -> str | None:  # noqa: ARG002
        """Nothing."""
        return None

    def place(self, packing: Packing, *, seed: int = 0, work: int | None = None, watch: Watch | None = None) -> Packed:
        """Places; see the module. O(orders x buffers^2) at most."""

        def script(attempt: Attempt) -> None:
            attempt.run("greedy", lambda a: place_greedily(a, self.orders))

        return conduct(Attempt(packing, seed, work, watch), self.name, self.refuses(packing), script)


def place_greedily(attempt: Attempt, orders: tuple[str, ...] = tuple(ORDERS)) -> None:
    """Offers what each order gives, until one is good enough, or a quarter of the work is spent after the first."""
    lifetimes, tried = attempt.arcs.lifetimes, set()
    for name in orders:
        order = order_by(attempt.arcs, ORDERS[name])
        if tuple(order) in tried:
            continue
        tried.add(tuple(order))
        for best_fit in (False, True):
            offsets = place_in_order(lifetimes, order, best_fit)
            fit = "best fit" if best_fit else "first fit"
            attempt.offer(offsets, f"greedy by {name}, {fit}", order, best_fit)
            attempt.work += lifetimes.count**2 // 2000
            if attempt.done or attempt.work > attempt.work_limit // _SHARE:
                return
        attempt.tick()
