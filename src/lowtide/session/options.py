"""Options as a person writes them: implementations, what may be offloaded.

Units: `_B` bytes, `_Bps` bytes per second.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypedDict

from lowtide.arguments import real_of
from lowtide.errors import BudgetError, LinkError
from lowtide.ir.machine import Link
from lowtide.ir.numerics import Numerics, parse_numerics
from lowtide.ops.catalogue import parse_without
from lowtide.profile.machines import links_of, named_links
from lowtide.units import Budget, parse_budget, parse_rate

HostBudget = int | str | Budget | None
Rate = int | float | str | None


class OffloadOptions(TypedDict):
    """Two of the fields of `PlanOptions`."""

    host_budget_B: int
    link_Bps: float | None


def offload_options(host_budget: HostBudget, link: Rate = None) -> OffloadOptions:
    """Reads how many bytes of the host may be used, and how fast the link is to be.

    Arguments:
        host_budget: bytes or "64GiB"; None or 0 to offload nothing.
        link: bytes per second or "12 GB/s" in each direction; None for what there is.

    Raises:
        BudgetError: if the host budget is malformed, or a share, or missing where a link is given.
        LinkError: if the link is malformed.
    """
    if host_budget is None or real_of(host_budget) == 0:
        if link is not None:
            raise BudgetError("link= says how fast values are offloaded: say with host_budget= how many bytes may")
        return {"host_budget_B": 0, "link_Bps": None}
    try:
        budget = parse_budget(host_budget)
    except BudgetError as error:
        raise BudgetError(f"host_budget: {error}") from error
    if budget.size_B is None:
        raise BudgetError(f'a host budget cannot be {budget}: write bytes as an integer, or "64GiB"')
    return {"host_budget_B": budget.size_B, "link_Bps": None if link is None else parse_rate(link)}


def links_named(host_budget: HostBudget, link: Rate, machine: str | None) -> tuple[Link, ...]:
    """The links for a graph whose seconds are known, but not where it runs; none where nothing is offloaded.

    Arguments:
        machine: whose links they are, by name or file; None for links of the rate that is given.

    Raises:
        LinkError: if nothing says how fast they are.
        LowtideError: if there is no such machine.
    """
    asked = offload_options(host_budget, link)
    if asked["host_budget_B"] == 0:
        return ()
    if machine is not None:
        return links_of(machine, asked["link_Bps"])
    if asked["link_Bps"] is None:
        raise LinkError('a file says nothing about a link to the host: write link="12 GB/s", or name a machine')
    return named_links(asked["link_Bps"])


class ImplementationOptions(TypedDict):
    """Two of the fields of `PlanOptions`."""

    numerics: Numerics
    without: frozenset[str]


def implementation_options(numerics: str | Numerics, without: Collection[str]) -> ImplementationOptions:
    """Reads a level, and what is to be left out.

    Raises:
        NumericsError: if there is no such level, or nothing of such a name.
    """
    return {"numerics": parse_numerics(numerics), "without": parse_without(without)}
