"""A graph's allocator events twice: put together from its mini-traces, and taken from a real run of its program.

Both drop a value right after the last recipe that reads it, in the order of the values' ids.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch

from lowtide.device.calls import apply_view, arguments, pick, resolve
from lowtide.device.observer import observe
from lowtide.ir.graph import Graph, Recipe
from lowtide.profile.measurement import output_paths

Events = list[int]  # +size of an allocation, or -(k + 1) for the release of the k-th


def dying(graph: Graph) -> dict[int, list[int]]:
    """Per recipe of the program, the values that nobody reads or receives after it."""
    last: dict[int, int] = {}
    for recipe in (graph.recipes[i] for i in graph.program):
        for value in (*recipe.read_values, *recipe.outputs):
            last[value] = recipe.id
    found: dict[int, list[int]] = {}
    for value, recipe_id in sorted(last.items()):
        if graph.values[value].leaves is None and graph.values[value].arrives is None:
            found.setdefault(recipe_id, []).append(value)
    return found


def synthesise(graph: Graph) -> Events:
    """What the traces of the program's recipes say, one after another."""
    events: Events = []
    base: dict[int, int] = {}
    count = 0
    dead = dying(graph)
    for recipe in (graph.recipes[i] for i in graph.program):
        first = count
        for event in recipe.trace.events:
            events.append(event if event >= 0 else event - first)
            count += event >= 0
        for value, allocation in zip(recipe.outputs, recipe.trace.outputs, strict=False):
            if allocation is not None:
                base[value] = first + allocation
        for takeover in recipe.consumes:
            if takeover.output is not None and takeover.value in base:
                base[recipe.outputs[takeover.output]] = base.pop(takeover.value)
        events += [-(base[v] + 1) for v in dead.get(recipe.id, ()) if v in base]
    return events


def execute(graph: Graph, given: dict[int, torch.Tensor], held: Sequence[Any] = ()) -> Events:
    """What the allocator really did for this thread while the program ran."""
    dead = dying(graph)
    env: dict[int, Any] = dict(given)
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad(), observe() as seen:
            for recipe in (graph.recipes[i] for i in graph.program):
                _run(recipe, env, held)
                for value in dead.get(recipe.id, ()):
                    env.pop(value, None)
    finally:
        gc.enable()
    events: Events = []
    live: dict[int, int] = {}
    count = 0
    for event in seen.events:
        if event.thread != seen.events[0].thread:
            continue  # workers stand apart from the events of a trace
        if event.size_B > 0:
            events.append(event.size_B)
            live[event.address] = count
            count += 1
        else:
            events.append(-(live.pop(event.address) + 1))
    return events


def _run(recipe: Recipe, env: dict[int, Any], held: Sequence[Any]) -> None:
    refs = []
    for read in recipe.reads:
        tensor = env[read.value]
        for view in read.views:
            tensor = apply_view(view, tensor, held)
        refs.append(tensor)
    args, kwargs = arguments(recipe.args, recipe.kwargs, refs, held)
    result = resolve(recipe.op)(*args, **kwargs)
    for value, path in zip(recipe.outputs, output_paths(recipe), strict=False):
        env[value] = pick(result, path)
    parts = list(result) if isinstance(result, tuple) else []
    del args, kwargs, refs, result
    while parts:  # as CPython releases a tuple: last to first
        parts.pop()
