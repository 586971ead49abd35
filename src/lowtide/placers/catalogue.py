"""All placers. A new one is its own file and one line here; it earns all contract tests with it."""

from __future__ import annotations

from lowtide.placers.base import AbstractPlacer
from lowtide.placers.exact import Exact
from lowtide.placers.greedy import Greedy
from lowtide.placers.order_search import OrderSearch
from lowtide.placers.portfolio import Best

PLACERS: tuple[AbstractPlacer, ...] = (
    Greedy(),
    OrderSearch(),
    Exact(),
    Best(),
)
