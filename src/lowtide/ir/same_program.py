"""A plan's graph held against the graph that was captured here: which recipe and which value is which.

A plan from a file is a set of decisions: what runs when, what is dropped, where it lies. Its own graph serves to find
out what those decisions are about, and is never run. Both graphs must have the same program, operator by operator,
with the same arguments, views and shapes. What is measured may differ (seconds, mini-traces, strides and sizes of what
an operator returns), and names that are for people; and so may the alternatives to the program: an implementation that
is not exact on this processor is not there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from lowtide.errors import PlanMismatch
from lowtide.ir.call import Items
from lowtide.ir.graph import Graph, Recipe, Value
from lowtide.ir.schedule import Boundary, Drop, Fetch, Run, Schedule, Send, Step

_REMEDY = "Plan again with lowtide.plan on this model and these inputs."
_LONG = 200  # characters of a difference that are shown


@dataclass(frozen=True)
class SameProgram:
    """Which recipes and values of a graph from elsewhere are which of the graph that was captured here.

    Arguments:
        recipes, values: id there -> id here; what is missing has no counterpart here.
        is_whole: whether everything has one, on both sides.
    """

    recipes: dict[int, int]
    values: dict[int, int]
    is_whole: bool

    def schedule(self, schedule: Schedule, there: Graph) -> Schedule:
        """The schedule in the ids of the graph here.

        Raises:
            PlanMismatch: if it runs a recipe, or names a value, that does not exist here.
        """
        return Schedule(tuple(self._step(step, there) for step in schedule.steps))

    def _step(self, step: Step, there: Graph) -> Step:
        match step:
            case Boundary():
                return step
            case Run():
                if step.recipe not in self.recipes:
                    op = there.recipes[step.recipe].op if 0 <= step.recipe < len(there.recipes) else "nothing known"
                    raise PlanMismatch(
                        f"the saved plan runs {op} (its recipe {step.recipe}), an implementation that is not used "
                        f"here: it is left out, or not exact on this processor. {_REMEDY}"
                    )
                return Run(self.recipes[step.recipe], self.here(step.keep), step.after)
            case Drop():
                return Drop(self.here((step.value,))[0], step.memory, step.after)
            case Send():
                return Send(self.here((step.value,))[0], step.memory, step.after)
            case Fetch():
                return Fetch(self.here((step.value,))[0], step.memory, step.after)

    def here(self, values: Iterable[int]) -> tuple[int, ...]:
        """Ids of values as they are here.

        Raises:
            PlanMismatch: if one of them has no counterpart.
        """
        found = tuple(values)
        for value in found:
            if value not in self.values:
                raise PlanMismatch(f"the saved plan names a value {value} that does not exist here. {_REMEDY}")
        return tuple(self.values[v] for v in found)


def same_program(there: Graph, here: Graph, *, any_numbers: bool = False) -> SameProgram:
    """Finds out which recipe and value of a plan's graph is which of the graph that was captured here.

    Arguments:
        there: well-formed (`lowtide.ir.check_graph`), of a saved plan.
        here: captured in this process.
        any_numbers: whether numbers among an operator's arguments may differ, a scale that changes from step to step.

    Raises:
        PlanMismatch: if the programs differ; names the first operator or value that does.

    O(graph), as often as alternatives build on one another.
    """
    return _Comparison(there, here, any_numbers).run()


@dataclass
class _Comparison:
    """What has been found to be the same so far.

    Invariant: `taken` has the values of `here` that have a counterpart.
    """

    there: Graph
    here: Graph
    any_numbers: bool
    recipes: dict[int, int] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)

    def run(self) -> SameProgram:
        there, here = self.there, self.here
        parts = [[s.part for s in graph.segments] for graph in (there, here)]
        if parts[0] != parts[1] or len(there.program) != len(here.program):
            raise _differs("the program", f"{len(there.program)} operators", f"{len(here.program)} operators")
        arriving = [[v.id for v in graph.arriving] for graph in (there, here)]
        if len(arriving[0]) != len(arriving[1]):
            raise _differs("what the program is given", f"{len(arriving[0])} values", f"{len(arriving[1])} values")
        self._pair(*arriving)
        for one, other in zip(there.program, here.program, strict=True):
            self._program_recipe(there.recipes[one], here.recipes[other])
        self._alternatives()
        for one, other in self.values.items():
            self._value(there.values[one], here.values[other])
        whole = len(self.recipes) == len(there.recipes) == len(here.recipes)
        whole = whole and len(self.values) == len(there.values) == len(here.values)
        return SameProgram(self.recipes, self.values, whole)

    def _pair(self, there: Sequence[int], here: Sequence[int]) -> None:
        self.values.update(zip(there, here, strict=True))
        self.taken.update(here)

    def _program_recipe(self, one: Recipe, other: Recipe) -> None:
        name = f"operator {one.id} ({other.op})"
        if len(one.outputs) != len(other.outputs):
            raise _differs(name, f"{len(one.outputs)} results", f"{len(other.outputs)} results")
        _same(name, self._call(one, self.values), self._call(other, None))
        self._pair(one.outputs, other.outputs)
        self.recipes[one.id] = other.id

    def _call(self, recipe: Recipe, values: dict[int, int] | None) -> dict[str, Any]:
        facts = _call(recipe, values)
        if self.any_numbers:
            facts["its arguments"] = _without_numbers(facts["its arguments"])
        return facts

    def _alternatives(self) -> None:
        """Pairs what is no part of the program: equal calls on equal values, of the option of the same name."""
        waiting: dict[Any, list[Recipe]] = defaultdict(list)
        program, options = set(self.here.program), _options(self.here)
        for recipe in self.here.recipes:
            if recipe.id not in program:
                waiting[options.get(recipe.id), *self._call(recipe, None).values()].append(recipe)
        program, options = set(self.there.program), _options(self.there)
        pending = [r for r in self.there.recipes if r.id not in program]
        while pending:
            left = []
            for recipe in pending:  # what reads another alternative's result is looked for after that one
                ready = all(v in self.values for v in recipe.read_values)
                key = (options.get(recipe.id), *self._call(recipe, self.values).values()) if ready else None
                if not (ready and self._alternative(recipe, waiting.get(key, []))):
                    left.append(recipe)
            if len(left) == len(pending):
                return
            pending = left

    def _alternative(self, recipe: Recipe, candidates: list[Recipe]) -> bool:
        """Takes the first candidate that makes the same of what both graphs have, and else something new to both."""
        for other in candidates:
            pairs = list(zip(recipe.outputs, other.outputs, strict=False))
            if len(recipe.outputs) == len(other.outputs) and all(
                self.values[a] == b if a in self.values else b not in self.taken for a, b in pairs
            ):
                self._pair(recipe.outputs, other.outputs)
                self.recipes[recipe.id] = other.id
                candidates.remove(other)
                return True
        return False

    def _value(self, one: Value, other: Value) -> None:
        handed = None if one.handed_to is None else self.values.get(one.handed_to)
        replaces = None if one.replaces is None else self.values.get(one.replaces)
        there = structs.replace(one, id=other.id, name=other.name, handed_to=handed, replaces=replaces)
        there = structs.replace(there, memory=other.memory)  # placement is among the decisions
        if other.arrives is None and _kind(one) == _kind(other):
            there = structs.replace(there, size_B=other.size_B, geometry=other.geometry)
        name = f"value {one.id} ({other.name})"
        _same(name, structs.asdict(there), structs.asdict(other))


def _call(recipe: Recipe, values: dict[int, int] | None) -> dict[str, Any]:
    """Everything that a recipe does, seconds and bytes apart, in other ids; its results are compared elsewhere.

    Arguments:
        values: id -> the one to write instead; None to keep them.
    """

    def known(value: int) -> int | None:
        return value if values is None else values.get(value)

    at = {v: i for i, v in enumerate(recipe.outputs)}
    state = None if recipe.state is None else (at.get(recipe.state, -1), recipe.state in at or known(recipe.state))
    return {
        "the operator": recipe.op,
        "what it reads": tuple((known(r.value), r.views) for r in recipe.reads),
        "its arguments": (recipe.args, recipe.kwargs),
        "its results": (len(recipe.outputs), recipe.paths),
        "its segment": recipe.segment,
        "its effect": (recipe.effect, state),
        "what it overwrites": tuple((known(t.value), t.output) for t in recipe.consumes),
        "its engine": recipe.engine,
    }


def _without_numbers(arguments: Any) -> Any:
    """Arguments with 0 in the place of every number; references to tensors stay."""
    if isinstance(arguments, int | float) and not isinstance(arguments, bool):
        return 0
    if isinstance(arguments, Items):
        return Items(_without_numbers(arguments.items))
    if isinstance(arguments, tuple):
        return tuple(_without_numbers(a) for a in arguments)
    return arguments


def _kind(value: Value) -> tuple[object, ...] | None:
    """What of a value's geometry is not measured."""
    geometry = value.geometry
    return None if geometry is None else (geometry.dtype, geometry.shape, geometry.device)


def _options(graph: Graph) -> dict[int, tuple[str, str, int]]:
    """Per recipe of a group, the group's name, the option's, and the recipe's place in it."""
    return {
        recipe: (group.name, option.name, place)
        for group in graph.groups
        for option in group.options
        for place, recipe in enumerate(option.recipes)
    }


def _same(name: str, there: dict[str, Any], here: dict[str, Any]) -> None:
    """Raises:
    PlanMismatch: names the first fact that differs.
    """
    for fact, expected in here.items():
        if there[fact] != expected:
            raise _differs(f"{name}: {fact}", there[fact], expected)


def _differs(what: str, there: object, here: object) -> PlanMismatch:
    return PlanMismatch(
        f"the saved plan is not of this program: {what}: {_shown(there)} in the plan, {_shown(here)} here. {_REMEDY}"
    )


def _shown(fact: object) -> str:
    text = fact if isinstance(fact, str) else repr(fact)
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."
