"""capture -> enlarge -> profile -> plan -> place -> run, on one page.

Each stage is a function of frozen values; this file composes them and decides nothing that a stage could. What needs
no torch of it, from the plan to its record, is `record.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

import lowtide
from lowtide.device.fingerprint import device_memory_B, fingerprint
from lowtide.ir.graph import Effect, Graph, Group
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import Covers, Environment
from lowtide.ops.catalogue import enlarge
from lowtide.planners.implementations.menu import restricted
from lowtide.profile.bandwidth import bandwidth
from lowtide.profile.cache import ProfileCache
from lowtide.profile.exactness import Exactness
from lowtide.profile.machines import links_of, load_machine
from lowtide.profile.measure import profile_graph
from lowtide.profile.roofline import predict_graph
from lowtide.record import Constraints, PlanOptions, PlanRequest

SHAPE_LIMIT_s = 2.0  # what people get who do not say otherwise


def enlarged(
    graph: Graph, held: Sequence[Any], contents: Mapping[int, Any], options: PlanOptions, exactness: Exactness
) -> Graph:
    """Adds the implementations that the options admit, without those that claim to be exact and are not so here.

    Arguments:
        graph: as captured.
        held: what the `Held` arguments of its recipes stand for.
        contents: tensors that live as long as the model, by value; of no account for a machine that is not here, since
            they may have no bytes.
        options: for a machine that is not here, nothing is tried: what claims to be exact is taken to be.
        exactness: what was tried before.

    Returns: a graph in which ids of what was captured are as before.
    """
    if options.machine is not None:
        return enlarge(graph, options.numerics, options.without)
    found = enlarge(graph, options.numerics, options.without, contents.get)
    refuted = exactness.refuted(found, held)
    if not refuted:
        return found
    doubted = {(r.group, r.option) for r in refuted if r.group is not None}
    lost = [r for one in refuted if one.group is None for r in one.recipes]
    groups = tuple(_doubted(group, [k for g, k in doubted if g == i]) for i, group in enumerate(found.groups))
    return restricted(msgspec.structs.replace(found, groups=groups), options.numerics, recipes=lost)


def _doubted(group: Group, numbers: Collection[int | None]) -> Group:
    """The group in which some options are not called exact any more."""
    options = (
        msgspec.structs.replace(o, numerics=Numerics.REASSOCIATED) if k in numbers else o
        for k, o in enumerate(group.options)
    )
    return msgspec.structs.replace(group, options=tuple(options))


def measure(
    graph: Graph,
    held: Sequence[Any],
    machine: str | None,
    cache: ProfileCache | None,
    like: Graph | None = None,
    *,
    scaled: bool = False,
) -> Graph:
    """Seconds and allocations of every recipe: measured here, or predicted for `machine`.

    Arguments:
        like: a measured graph of the same structure, from which seconds may be scaled.
        scaled: whether seconds in the cache that were scaled will do.
    """
    if machine is not None:
        return predict_graph(graph, load_machine(machine))
    return run_once_where_not_repeated(profile_graph(graph, held=held, cache=cache, like=like, scaled=scaled).graph)


def run_once_where_not_repeated(graph: Graph) -> Graph:
    """The graph in which what does not repeat itself runs once: its results are kept, whatever the plan.

    Recomputing such an operator would give other bits than the values that others have read already. Replays of it, and
    whatever else makes the same values, are left out.

    Arguments:
        graph: profiled; ids of what its program runs may close up.
    """
    program = set(graph.program)
    fixed = {r for r in program if not graph.recipes[r].repeats}
    lost = {r.id for r in graph.recipes if not r.repeats and r.id not in program}
    if not fixed and not lost:
        return graph
    made = {v for r in fixed for v in graph.recipes[r].outputs}
    lost |= {r.id for r in graph.recipes if r.id not in program and not made.isdisjoint(r.outputs)}
    for group in graph.groups:
        if not fixed.isdisjoint(group.options[0].recipes):
            lost |= {r for option in group.options[1:] for r in option.recipes} - program
    recipes = tuple(
        msgspec.structs.replace(r, effect=Effect.OPAQUE) if r.id in fixed and r.effect is Effect.PURE else r
        for r in graph.recipes
    )
    return restricted(msgspec.structs.replace(graph, recipes=recipes), Numerics.LOSSY, recipes=lost)


def linked(options: PlanOptions, device: str, cache: ProfileCache) -> PlanOptions:
    """The options with the links over which plans may move values: measured here, or those of another machine.

    Arguments:
        device: torch device type.

    Raises:
        LinkError: if that machine has none.
        LowtideError: if there is no such machine.
    """
    if options.host_budget_B == 0 or options.links:
        return options
    if options.machine is None:
        links = bandwidth(device, cache).links(options.link_Bps)
    else:
        links = links_of(options.machine, options.link_Bps)
    return dataclasses.replace(options, links=links)


def request_here(
    graph: Graph,
    options: PlanOptions,
    *,
    constraints: Constraints,
    device: str,
    covers: Covers,
    agreed_B: int | None = None,
    at_least_B: int = 0,
) -> PlanRequest:
    """A request for a plan of a graph that was profiled here, or predicted for another machine.

    Arguments: see `PlanRequest`.
    """
    return PlanRequest(
        graph=graph,
        options=options,
        constraints=constraints,
        covers=covers,
        environment=environment(device),
        device=device,
        device_B=lambda: device_memory_B(device),
        agreed_B=agreed_B,
        at_least_B=at_least_B,
    )


def environment(device: str) -> Environment:
    """The torch, processor, threads and settings on which measurements depend."""
    facts = fingerprint(device)
    return Environment(
        torch=facts.torch,
        device=facts.device,
        threads=facts.threads,
        lowtide=lowtide.__version__,
        arithmetic=f"{facts.capability}, {facts.arithmetic}",
    )
