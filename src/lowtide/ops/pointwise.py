"""Elementwise operators as runs: what lies between them, and what a backward would read of that, never exists whole.

A backward that reads what a forward run has inside gets a run of its own, which begins by recomputing that, tile by
tile, from what the forward run was given. So of GELU's eight tensors, in the form that GPT-2 writes it, one is saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, final

from lowtide.ir.call import Arg, Items, NamedArg, Read, Ref
from lowtide.ir.graph import Option, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import FUSION, AbstractFamily, Kernel
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.runs import Member, fits_together, is_one_row, leaves_choice, members, order, runs
from lowtide.ops.tiles import BY_ROWS, TILED, Step, Tiles

_TILED = "lowtide.tiled"
_BY_ROWS = "lowtide.tiled_by_rows"
"""Where vectors end with rows, and threads' shares may end elsewhere: tried at every size."""
_DROPOUT_BACKWARD = "aten.native_dropout_backward.default"
_COPIES = frozenset({"aten._to_copy.default", "aten.clone.default"})
_WORTH_B = 1 << 14
"""Bytes that have to vanish."""

Run = tuple[Member, ...]


@final
@dataclass(frozen=True)
class Pointwise(AbstractFamily):
    """Runs tile by tile, by torch's own operators. Exact: the same kernels, on slices cut so that nothing changes."""

    name: ClassVar[str] = "pointwise"
    kind: ClassVar[str] = FUSION
    kernels: ClassVar[Mapping[str, Kernel]] = {"tiled": TILED, "tiled_by_rows": BY_ROWS}

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:  # noqa: ARG002  # exact at any level
        known = members(builder)
        found = _Found(builder, known, runs(builder, known))
        for bunch in found.bunches():
            inside = {v for run in bunch for v in found.inside(run)}
            vanishing_B = sum(builder.values[v].size_B for v in inside)
            vanishing_B += sum(_temporary_B(builder, m) for run in bunch for m in run)
            if vanishing_B < _WORTH_B:
                continue
            replaced = [m.recipe.id for run in bunch for m in run]
            if not builder.is_free(replaced):
                continue
            recipes = [r for run in bunch for r in _tiled(builder, found, run, inside)]
            builder.group(self.kind, f"{self.name} {replaced[0]}", replaced, [Option("tiled", tuple(recipes))])


@dataclass
class _Found:
    """The runs of a program, and which values remain inside them.

    Arguments:
        known: members by what they make.
        all: disjoint runs.
        read_elsewhere: values that implementations read which are there already.
        outside: values that somebody else reads, so that they have to exist.
    """

    builder: GraphBuilder
    known: Mapping[int, Member]
    all: list[Run]
    run_of: dict[int, Run] = field(default_factory=dict)
    read_elsewhere: set[int] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.run_of = {m.value: run for run in self.all for m in run}
        program = set(self.builder.graph.program)
        self.read_elsewhere = {v for r in self.builder.recipes if r.id not in program for v in r.read_values}
        self.outside = {v for v in self.run_of if not self._only_runs_read(v)}
        while more := {v for run in self.all for v in self._out_of_reach(run)}:
            self.outside |= more

    def inside(self, run: Run) -> Iterator[int]:
        """What a run makes that nobody outside its bunch reads."""
        return (m.value for m in run if m.value not in self.outside)

    def again(self, run: Run) -> list[Member]:
        """Members of earlier runs that a run repeats: those that make what it reads and what does not exist."""
        mine, needed = set(run), {}
        pending = list(run)
        while pending:
            for value in pending.pop().recipe.read_values:
                maker = self.known.get(value)
                if maker is not None and maker not in mine and value not in self.outside and value not in needed:
                    needed[value] = maker
                    pending.append(maker)
        return order(self.builder, needed.values())

    def bunches(self) -> Iterator[list[Run]]:
        """Runs that are chosen together, because one repeats what another has inside."""
        bunch_of = {run: {run: None} for run in self.all}
        for run in self.all:
            for other in {self.run_of[m.value]: None for m in self.again(run)}:
                both = bunch_of[other] | bunch_of[run]
                bunch_of.update(dict.fromkeys(both, both))
        return (list(bunch) for bunch in {id(b): b for b in bunch_of.values()}.values())

    def _only_runs_read(self, value: int) -> bool:
        builder = self.builder
        if builder.values[value].leaves is not None or value in self.read_elsewhere:
            return False
        readers = [builder.recipes[r] for r in builder.readers.get(value, ())]
        own = self.known[value].recipe.segment
        return bool(readers) and all(
            (reader := self.known.get(r.outputs[0])) is not None
            and reader.recipe.id == r.id
            and (r.segment > own or reader in self.run_of[value])
            for r in readers
        )

    def _out_of_reach(self, run: Run) -> set[int]:
        """What a run cannot repeat: its steps do not go with the run's, or their arguments are gone by then."""
        again = self.again(run)
        if not again:
            return set()
        segment = run[0].recipe.segment
        given = {v for m in again for v in m.recipe.read_values} - {m.value for m in again}
        ends = (self.builder.values[v].readable_through for v in given)
        if fits_together(self.builder, (*again, *run)) and all(e is None or e >= segment for e in ends):
            return set()
        return {m.value for m in again}


def _temporary_B(builder: GraphBuilder, member: Member) -> int:
    """Bytes that torch's own operator takes besides its result."""
    return builder.values[member.value].size_B if member.recipe.op == _DROPOUT_BACKWARD else 0


def _tiled(builder: GraphBuilder, found: _Found, run: Run, inside: set[int]) -> tuple[int, ...]:
    """Adds the recipe of one run, if anything of it is read."""
    wanted = [m.value for m in run if m.value not in inside]
    if not wanted:
        return ()
    steps = _Steps()
    all_members = (*found.again(run), *run)
    for member in all_members:
        steps.add(member)
    op = _TILED if is_one_row(all_members) or not leaves_choice(all_members) else _BY_ROWS
    geometries = (m.result for m in run if m.value not in inside)
    sizes = Items(tuple(Items((Items(g.shape), Items(g.stride))) for g in geometries))
    text = Tiles(len(steps.given), tuple(steps.steps), tuple(steps.made[v] for v in wanted)).text
    args: tuple[Arg, ...] = (text, sizes, *(Ref(i) for i in range(len(steps.given))))
    return (builder.recipe(run[-1].recipe, op, outputs=wanted, reads=list(steps.given), args=args),)


class _Steps:
    """The steps of a run under construction: what they are given, in order, and which step makes a value."""

    def __init__(self) -> None:
        self.given: dict[Read, int] = {}
        self.steps: list[Step] = []
        self.made: dict[int, int] = {}

    def add(self, member: Member) -> None:
        """Adds what a member does."""
        recipe, dtype = member.recipe, member.result.dtype
        args = tuple(self._operand(recipe, a) for a in recipe.args)
        if recipe.op == _DROPOUT_BACKWARD:
            gradient, mask, factor = args
            kept = self._step("aten._to_copy.default", (mask,), (), dtype)
            product = self._step("aten.mul.Tensor", (gradient, kept), (), dtype)
            self._step("aten.mul.Tensor", (product, factor), (), dtype)
        else:
            said = () if recipe.op in _COPIES else tuple((k, a) for k, a in recipe.kwargs if (k, a) != ("alpha", 1))
            self._step(recipe.op, args, said, dtype)
        self.made[member.value] = len(self.steps) - 1

    def _step(self, op: str, args: tuple[Arg, ...], kwargs: tuple[NamedArg, ...], dtype: str) -> Ref:
        self.steps.append(Step(op, args, kwargs, dtype))
        return Ref(-len(self.steps))

    def _operand(self, recipe: Recipe, arg: Arg) -> Arg:
        if not isinstance(arg, Ref):
            return arg
        read = recipe.reads[arg.index]
        if read.value in self.made:
            return Ref(-1 - self.made[read.value])
        return Ref(self.given.setdefault(read, len(self.given)))
