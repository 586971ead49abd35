"""The classes of schedules for which bounds and floors hold, in words: they stand behind every bound that is shown."""

from __future__ import annotations

from lowtide.ir.machine import Machine
from lowtide.planners.offload.movement import Rates

ONE_IMPLEMENTATION = "one implementation per operator"
ANY_IMPLEMENTATION = "any implementation of every operator"
PROGRAM_ORDER, CHOSEN_ORDER = "program order", "the order that was chosen"
BOUND_CLASS = f"any recomputation; first runs in {PROGRAM_ORDER}; {ONE_IMPLEMENTATION}"
CHOSEN_CLASS = f"any recomputation; first runs in {CHOSEN_ORDER}; {ONE_IMPLEMENTATION}"
OFFLOAD_CLASS = f"any recomputation; any offload; {ONE_IMPLEMENTATION}"
OFFLOAD_JOINT_CLASS = f"any recomputation; any offload; {ANY_IMPLEMENTATION}"


def offload_class(machine: Machine) -> str:
    """Any recomputation, and any offload over the machine's links."""
    rates = Rates.of(machine)
    there, back = (f"{1e-9 / s if s else float('inf'):.4g} GB/s" for s in (rates.to_s_per_B, rates.from_s_per_B))
    return f"any recomputation; any offload to the host at {there} and prefetch at {back}"
