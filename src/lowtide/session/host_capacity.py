"""The bytes of the host budget that are left for offloaded values. Units: `_B` bytes."""

from __future__ import annotations

from lowtide.device.fingerprint import device_memory_B
from lowtide.errors import InfeasibleBudget
from lowtide.ir.plan import PlanRecord
from lowtide.placers.host_heap import host_height_B
from lowtide.units import format_B


def host_free_B(record: PlanRecord) -> int:
    """The limit of what a plan offloads: the host budget less what is host-resident, which lies elsewhere.

    Raises:
        InfeasibleBudget: if the plan's copies do not fit there with the holes between them; nothing has been run.
    """
    whole_B = device_memory_B("cpu") if record.host_budget_B is None else record.host_budget_B
    free_B = whole_B - record.graph.hosted_B
    need_B = host_height_B(record.graph, record.schedule, free_B)
    if need_B > free_B:
        least_B = record.graph.hosted_B + need_B
        raise InfeasibleBudget(
            f"what the plan offloads takes {format_B(need_B)} of host memory with the holes between, next to "
            f"{format_B(record.graph.hosted_B)} that live there, and the host budget is {format_B(whole_B)}. Nothing "
            f"has been changed. Use host_budget={least_B}, or less and let lowtide.plan find another plan.",
            budget_B=record.budget_B,
        )
    return free_B
