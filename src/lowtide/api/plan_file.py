"""`lowtide.plan_file`: a plan for a graph that is a file. Needs no torch.

Units: `_B` bytes.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import NoReturn

from lowtide import __version__
from lowtide.api.depth import deepened
from lowtide.arguments import check_file, function, shown, whole
from lowtide.errors import ArgumentError, BudgetError
from lowtide.ir.graph_file import read_graph
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import DEFAULT_WORK, Covers, Environment
from lowtide.planners.base import Watch
from lowtide.planners.implementations.menu import restricted
from lowtide.record import PlanOptions, PlanRequest, make_record
from lowtide.results.plan import Plan
from lowtide.session.options import HostBudget, Rate, implementation_options, links_named, offload_options
from lowtide.units import Budget, parse_budget

COVERS = Covers(
    inside=("what the file's graph holds: its constants, and the values and workspaces of its operators",),
    outside=("what the file does not hold, such as an optimizer's state", "holes between tensors"),
)


def plan_file(
    path: str | os.PathLike[str],
    *,
    budget: int | str | Budget,
    repeat: Mapping[str, int] | None = None,
    host_budget: HostBudget = None,
    link: Rate = None,
    machine: str | None = None,
    numerics: str | Numerics = Numerics.EXACT,
    without: Collection[str] = (),
    seed: int = 0,
    work: int = DEFAULT_WORK,
    time_limit_s: float | None = None,
    watch: Watch | None = None,
) -> Plan:
    """Plans a graph from a file, on any machine: seconds and bytes are those that the file says.

    Arguments:
        path: a graph that lowtide saved (`.json`, `.json.gz`), or an execution trace (`.jsonl`, `.jsonl.gz`; see
            `lowtide.ir.execution_trace`).
        budget: see `parse_budget`; a share can only be one of plain.
        repeat: layers of the graph by name, and how often in a row each is to come: the plan of a deeper network, or of
            a shallower one. A layer that there is not is refused with the names of those that there are.
        host_budget: bytes of host memory in which offloaded values may wait, or "64GiB"; None to offload nothing.
        link, machine: bandwidth of copies: a rate, or the machine whose link it is ("h200", or its file), or both,
            where the rate holds the machine's to less. Seconds of operators are those of the file all the same.
        numerics: how far results may be from the program's: of the implementations in the file, those of this level.
        without: implementations to leave out, by kind or by family.
        seed, work, time_limit_s: see `Problem`.
        watch: told of planning's progress.

    Raises:
        ArgumentError: if an argument is of the wrong kind or out of range.
        PlanFileError: if there is no such file, or it is damaged or foreign.
        BudgetError: if a budget is malformed, or a share of a device.
        LinkError: if values may be offloaded, and nothing says how fast.
        LowtideError: if there is no such machine.
        NumericsError: if there is no such level, or nothing of the name that is to be left out.
        PlanError: if there is no such layer to repeat.
        InfeasibleBudget: if no plan fits.
    """
    check_file(path)
    function("watch", watch, "watch=print")
    if not isinstance(repeat, Mapping | None):
        raise ArgumentError(f'repeat={shown(repeat)} is no mapping by name: write repeat={{"transformer.h": 96}}')
    for layer, times in (repeat or {}).items():
        whole(f"repeat[{layer!r}]", times, least=1, example="96")
    options = PlanOptions(
        budget=parse_budget(budget),
        seed=seed,
        work=work,
        time_limit_s=time_limit_s,
        **implementation_options(numerics, without),
        **offload_options(host_budget, link),
        links=links_named(host_budget, link, machine),
    )
    if options.budget.of_device is not None:
        _no_device()
    graph = restricted(deepened(read_graph(path), repeat or {}), options.numerics, options.without)
    environment = Environment(lowtide=__version__)
    request = PlanRequest(graph=graph, options=options, covers=COVERS, environment=environment, device_B=_no_device)
    return Plan(make_record(request, watch=watch))


def _no_device() -> NoReturn:
    raise BudgetError('a file has no device to take a share of: write bytes, "6GiB", or "60% of plain"')
