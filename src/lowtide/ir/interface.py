"""What each segment of generated code takes from its caller and gives back.

A segment takes a list of arguments and returns a tuple. Which values they are is fixed by the captured graph;
only the slots differ from plan to plan.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from lowtide.errors import PlanError
from lowtide.ir.call import Read
from lowtide.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Slot:
    """A result that is filled only if the plan carries the value to a later segment; else an empty tensor.

    Arguments:
        value: what has this slot to itself while it is carried; None for a spare one.
        argument: where the next segment finds it among its arguments.
    """

    value: int | None
    argument: int


@dataclass(frozen=True, slots=True)
class Token:
    """The result that names the plan to later segments."""


Result = Read | Slot | Token | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Interface:
    """Arguments and results of one segment.

    Arguments:
        arguments: per position the value given there, or None for what the code has no use for.
        results: per position what is returned: a tensor (a value through views), a slot, the token, a number, None.
        constants: values that nobody passes, with their index in what the capture holds.
    """

    arguments: tuple[int | None, ...]
    results: tuple[Result, ...]
    constants: tuple[tuple[int, int], ...] = ()

    @property
    def slots(self) -> dict[int, Slot]:
        """The slots among the results, by position."""
        return {i: r for i, r in enumerate(self.results) if isinstance(r, Slot)}


def crossing(graph: Graph) -> frozenset[int]:
    """Values of the first segment that some plan may use in a later one: read there, or needed to make what is.

    Returns: ids, constants that nobody passes among them. O(graph).
    """
    found: set[int] = set()
    pending = [v for r in graph.recipes if r.segment > 0 for v in r.read_values]
    pending += [v.id for v in graph.values if v.leaves]
    while pending:
        value = pending.pop()
        arrives = graph.values[value].arrives
        makers = [r for r in graph.producers[value] if graph.recipes[r].segment == 0]
        if value in found or not (makers or arrives == 0):
            continue
        found.add(value)
        pending += [v for r in makers for v in graph.recipes[r].read_values]
    return frozenset(found)


def filled(interfaces: tuple[Interface, ...], carried: Collection[int]) -> tuple[Interface, ...]:
    """Gives what a plan carries from the forward to the backward, and what has no slot, one that the plan leaves empty.

    Arguments:
        interfaces: of a forward and its backward; others are unchanged.
        carried: values that the backward uses from before it begins.

    Raises:
        PlanError: if there are too few.
    """
    if len(interfaces) < 2:
        return interfaces
    forward, backward = interfaces
    slots = forward.slots
    there = {*backward.arguments, *(value for value, _ in backward.constants)}
    lacking = sorted(set(carried) - there)
    free = [i for i, slot in slots.items() if slot.value not in carried]
    if len(lacking) > len(free):
        raise PlanError(
            f"the plan carries {len(lacking)} values of its own to the backward, and {len(free)} slots are free"
        )
    if not lacking:
        return interfaces
    results, arguments = list(forward.results), list(backward.arguments)
    for value, i in zip(lacking, free, strict=False):
        results[i] = replace(slots[i], value=value)
        arguments[slots[i].argument] = value
    return replace(forward, results=tuple(results)), replace(backward, arguments=tuple(arguments))
