"""The planners there are. A new one is its own file and one line here; it earns all contract tests with it."""

from __future__ import annotations

from lowtide.planners.base import AbstractPlanner
from lowtide.planners.first_plan import FirstPlan
from lowtide.planners.greedy import Greedy
from lowtide.planners.keep_all import KeepAll
from lowtide.planners.local_search import LocalSearch
from lowtide.planners.portfolio import Portfolio
from lowtide.planners.single_cut import SingleCutReplay

PLANNERS: tuple[AbstractPlanner, ...] = (
    KeepAll(),
    Greedy(),
    SingleCutReplay(),
    LocalSearch(),
    FirstPlan(),
    Portfolio(),
)
