"""`lowtide.frontier_file`: the least time at every budget for a graph that is a file. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Collection

from lowtide import __version__
from lowtide.api.plan_file import COVERS
from lowtide.arguments import check_file
from lowtide.ir.graph_file import read_graph
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import Environment
from lowtide.planners.frontier import POINTS, WORK, Watch
from lowtide.planners.implementations.menu import restricted
from lowtide.record import Constraints, PlanOptions
from lowtide.results.frontier import Frontier
from lowtide.results.make_frontier import Effort, traced
from lowtide.session.options import HostBudget, Rate, implementation_options, links_named, offload_options
from lowtide.units import Budget


def frontier_file(
    path: str | os.PathLike[str],
    *,
    points: int = POINTS,
    host_budget: HostBudget = None,
    link: Rate = None,
    machine: str | None = None,
    baselines: bool = True,
    numerics: str | Numerics = Numerics.EXACT,
    without: Collection[str] = (),
    seed: int = 0,
    work: int = WORK,
    time_limit_s: float | None = None,
    watch: Watch | None = None,
) -> Frontier:
    """Finds the least time at every budget for a graph from a file, on any machine.

    Arguments:
        path: a graph that lowtide saved (`.json`, `.json.gz`), or an execution trace (`.jsonl`, `.jsonl.gz`).
        host_budget, link, machine: what may be offloaded to the host, and how fast; as for `lowtide.plan_file`.
        points, baselines, numerics, without, seed, work, time_limit_s, watch: as for `lowtide.frontier`.

    Raises:
        ArgumentError: if an argument is of the wrong kind or out of range.
        PlanFileError: if there is no such file, or it is damaged or foreign.
        BudgetError: if there are fewer than two points, or the host budget is malformed.
        LinkError: if values may be offloaded, and nothing says how fast.
        NumericsError: if there is no such level, or nothing of the name that is to be left out.
        KeyboardInterrupt: on Ctrl-C before the first plan.
    """
    check_file(path)
    effort = Effort(points=points, baselines=baselines, seed=seed, work=work, time_limit_s=time_limit_s, watch=watch)
    menu = implementation_options(numerics, without)
    links = links_named(host_budget, link, machine)
    options = PlanOptions(budget=Budget(of_plain=1.0), links=links, **menu, **offload_options(host_budget, link))
    return traced(
        restricted(read_graph(path), **menu),
        effort,
        options,
        constraints=Constraints(),
        covers=COVERS,
        environment=Environment(lowtide=__version__),
    )
