"""Simulated annealing over what to keep in which gap, with exact incremental evaluation.

The moves and the rule are in `src/core/annealer.hpp`. Several starts share the work; each begins from the
incumbent, or from keep-all when there is none, at a temperature of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide._core import Annealer, Retention
from lowtide.ir.plan import Outcome, Problem
from lowtide.planners.base import AbstractPlanner, Watch
from lowtide.planners.greedy import descend
from lowtide.planners.keep_all import beyond_keep_all
from lowtide.planners.reductions.stages import refuses_stages
from lowtide.planners.search import Search, conduct

_SLICE_S = 0.02  # aim of one call into the core
_COLD = 0.01  # last temperature as a fraction of the first


@final
@dataclass(frozen=True)
class LocalSearch(AbstractPlanner):
    """Greedy start, then annealing.

    Arguments:
        temperatures: first temperatures of the starts, in mean run times of a recipe; low ones repair and polish, high
            ones find plans under tight budgets.
    """

    temperatures: tuple[float, ...] = (0.5, 3.0)
    name: ClassVar[str] = "local-search"

    def refuses(self, problem: Problem) -> str | None:
        """Only graphs that have no stage program."""
        return refuses_stages(problem.graph)

    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """FEASIBLE or UNSOLVED, or what the floor and keep-all prove; its bound is the time of the first runs."""
        script = beyond_keep_all(("greedy", descend), ("annealing", lambda s: anneal(s, self.temperatures)))
        return conduct(problem, watch, self.name, self.refuses(problem), script)


def anneal(search: Search, temperatures: tuple[float, ...]) -> None:
    """Spends what is left of the work on annealing, split over the temperatures; stops early when close enough."""
    for number, temperature in enumerate(temperatures):
        work = (search.problem.work - search.work) // (len(temperatures) - number)
        if work <= 0 or search.clock.is_close():
            return
        anneal_once(search, search.retention(), temperature, work, search.problem.seed * 1000 + number)


def anneal_once(
    search: Search, state: Retention, temperature: float, work: int, seed: int, enough_ps: int | None = None
) -> Annealer:
    """One annealing run from `temperature`; offers the best that fits.

    Arguments:
        enough_ps: stop at a plan that takes no longer; close enough to the bound if None.

    Returns: the finished annealer; `state` is left wherever it ended.
    """
    enough = search.enough_ps if enough_ps is None else enough_ps
    annealer = Annealer(state, seed, work, temperature, temperature * _COLD, enough)
    before, done, step = search.work, False, 256
    best = search.program.keep_all(search.budget_B)
    try:
        while not done:
            began_s = search.clock.elapsed_s
            done = annealer.run(step)
            took_s = search.clock.elapsed_s - began_s
            # How the proposals are sliced changes nothing but how soon a limit or Ctrl-C is noticed.
            step = max(64, min(8192, int(step * _SLICE_S / max(took_s, 1e-4)), 4 * step))
            search.work = before + annealer.tried
            if annealer.found and (search.time_ps is None or annealer.best_time_ps < search.time_ps):
                _take(search, annealer, best)
            search.clock.tick()
    finally:
        search.stats["moves_tried"] = search.stats.get("moves_tried", 0) + annealer.tried
        search.stats["moves_accepted"] = search.stats.get("moves_accepted", 0) + annealer.accepted
    return annealer


def _take(search: Search, annealer: Annealer, best: Retention) -> None:
    if best.assign(annealer.best_taus):
        search.offer(best)
