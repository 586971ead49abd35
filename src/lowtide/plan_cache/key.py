"""The cache key of a plan, which is the same in every process, and the check whether a cached plan still applies.

Seconds are not in the key: they are measured, and where an operator cannot be cached they differ from process to
process. A plan stays legal whatever the seconds are; while they are near, it stays good, and its claims are worked out
anew from them.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import hashlib

import msgspec

import lowtide
from lowtide.device.fingerprint import fingerprint
from lowtide.errors import PlanFileError
from lowtide.ir.compilers import EAGER
from lowtide.ir.graph import Graph
from lowtide.ir.likeness import memory, seconds_apart, shapes, size_B, structure
from lowtide.ir.plan import PlanRecord
from lowtide.plan_cache.store import Header
from lowtide.record import Constraints, PlanOptions, PlanRequest, budget_in_B, carried_over

_NEAR = 0.1  # of a step's seconds: a plan made for other ones loses less than that
_GENERATION = 4  # raise it when planners or placers find other plans for the same inputs


class CacheKey(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on which a plan depends, the graph's seconds apart.

    Arguments:
        program, memory: of the graph (`lowtide.ir.likeness`).
        manner: how it is searched: planner, seed, work, limits, the budget as it was asked for.
        budget_B: what the budget comes to; 0 while that is not known before planning.
        constraints: what the plan has to leave free.
        place: fingerprint of the process and the machine, and lowtide's version.
    """

    program: str
    memory: str
    manner: str
    budget_B: int
    constraints: tuple[int, ...]
    place: str

    @property
    def key(self) -> str:
        """16 hexadecimal digits."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def cache_key_of(request: PlanRequest, limit_s: float | None = None) -> CacheKey | None:
    """What a plan from the cache has to be an answer to, to be the one that would be made for a request.

    Arguments:
        limit_s: of a search that may begin from another shape's plan; None for one that begins from nothing.

    Returns: None where the plan is of no use to anybody else: it lies around bytes that earlier steps left.
    """
    graph, options, constraints = request.graph, request.options, request.constraints
    if constraints.live_blocks:
        return None
    budget_B = 0
    if request.agreed_B is None and options.budget.of_plain is not None:  # which only planning finds out
        ceiling_B = -1 if constraints.ceiling_B is None else constraints.ceiling_B
        capacity: tuple[int, ...] = (ceiling_B, request.at_least_B)
    else:
        budget_B = budget_in_B(request)
        capacity = (constraints.free_B(graph, budget_B, request.at_least_B),)
    return CacheKey(
        program=structure(graph),
        memory=memory(graph),
        manner=manner_of(options, limit_s),
        budget_B=budget_B,
        constraints=(*_constants(constraints), *capacity),
        place=_place(request.device),
    )


def _constants(constraints: Constraints) -> tuple[int, ...]:
    return (
        constraints.outside_B,
        int(constraints.enforced),
        constraints.reserve_B,
        constraints.optimizer_B,
        constraints.alignment_B,
    )


def _place(device: str) -> str:
    return f"{fingerprint(device).key} {lowtide.__version__} {_GENERATION}"


def least_of(request: PlanRequest) -> CacheKey | None:
    """The key of the plan for the smallest budget of a graph, whatever was asked for and however it was searched.

    Returns: None where it is of no use to anybody else, as for `cache_key_of`.
    """
    if request.constraints.live_blocks:
        return None
    return CacheKey(
        program=structure(request.graph),
        memory=memory(request.graph),
        manner=f"least{host_options_of(request.options)}",
        budget_B=0,
        constraints=_constants(request.constraints),
        place=_place(request.device),
    )


def host_options_of(options: PlanOptions) -> str:
    """What plans may use of the host, as text: a plan that offloads values is none where nothing may be offloaded."""
    if options.host_budget_B == 0:
        return ""
    return msgspec.json.encode((options.host_budget_B, options.host_resident)).decode()


def manner_of(options: PlanOptions, limit_s: float | None) -> str:
    """The options of the search, as text; equal exactly when a search of the same graph would be the same."""
    budget = (options.budget.size_B, options.budget.of_device, options.budget.of_plain)
    searched = (repr(options.planner), options.seed, options.work, options.time_limit_s, options.machine, limit_s)
    moves = (options.host_budget_B, options.link_Bps, options.links, options.host_resident)
    compiler = () if options.compiler == EAGER else (options.compiler,)
    moved = () if options.host_budget_B == 0 else moves
    facts = (budget, *searched, options.numerics, sorted(options.without), *moved, *compiler)
    return msgspec.json.encode(facts).decode()


def header_of(cache_key: CacheKey, record: PlanRecord, neighbourhood: str) -> Header:
    """The header of a cached plan.

    Arguments:
        neighbourhood: what plans must share to serve as a start for each other.
    """
    graph = record.graph
    return Header(
        key=cache_key.key,
        structure=cache_key.program,
        size_B=size_B(graph),
        name=program_name(graph),
        shapes=shapes(graph),
        budget_B=record.budget_B,
        environment=neighbourhood,
        lowtide=record.environment.lowtide,
    )


def program_name(graph: Graph) -> str:
    """A name for people: the graph's own, or the outermost module in which its operators were called."""
    modules = [r.origin.module.partition(".")[0] for r in graph.recipes if r.origin.module]
    return graph.name or (max(set(modules), key=modules.count) if modules else "")


def revived(record: PlanRecord, request: PlanRequest) -> PlanRecord | None:
    """A cached plan's decisions for the graph at hand, proved legal for it, its claims worked out from that graph.

    Returns: None where the seconds have become too different for the plan to be a good one.

    Raises:
        PlanFileError: if it is for other bytes than its key says.
        PlanMismatch: if it is of another program, or may not be carried out.
    """
    graph, constraints = request.graph, request.constraints
    if memory(record.graph) != memory(graph) or (record.layout is not None) != constraints.enforced:
        raise PlanFileError("it is for other bytes than its name says")
    left = (record.outside_B, record.reserve_B, record.optimizer_B)
    if left != (constraints.outside_B, constraints.reserve_B, constraints.optimizer_B):
        raise PlanFileError("it leaves other bytes free than its name says")
    if seconds_apart(graph, record.graph) > _NEAR:
        return None
    found = carried_over(
        record, graph, constraints=constraints, budget_B=record.budget_B, covers=request.covers,
        environment=request.environment, any_numbers=True,
    )  # fmt: skip
    free_B = constraints.free_B(found.graph, record.budget_B, request.at_least_B)
    if constraints.enforced and (found.layout is None or found.layout.height_B > free_B):
        raise PlanFileError("its addresses reach past the budget")
    if found.peak_B > record.budget_B:
        raise PlanFileError("it takes more than the budget")
    if found.host_budget_B is not None and found.host_peak_B > found.host_budget_B:
        raise PlanFileError("it takes more than the host's budget")
    return msgspec.structs.replace(found, graphs=record.graphs, breaks=record.breaks)
