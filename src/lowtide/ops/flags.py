"""Truth values that a backward needs, handed on as bits: an eighth of bools, less still of what they are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from msgspec.structs import replace

from lowtide._core import unpack_flags as unpack_flags_of
from lowtide.ir.call import Items, Read
from lowtide.ir.graph import Effect, Option, Recipe
from lowtide.ir.layout import SMALL_B
from lowtide.ir.numerics import Numerics
from lowtide.ops.arguments import bound
from lowtide.ops.base import SAVED, AbstractFamily, Kernel
from lowtide.ops.bits import KERNELS, PIECE, bits_geometry, unpacked_by_torch
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.lazy import torch
from lowtide.ops.memory_order import Order, as_argument, dense_order, empty_in_order, spans

if TYPE_CHECKING:
    from torch import Tensor

_TESTS = frozenset(
    {
        *(f"aten.{name}.{kind}" for name in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Scalar", "Tensor")),
        *(f"aten.{name}.default" for name in ("logical_and", "logical_or", "logical_not", "logical_xor", "isnan")),
        *("aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor", "aten.bitwise_not.default"),
    }
)
"""Operators whose truth values hang on nothing but their arguments."""
_MOST_READERS = 4


def unpack_flags(bits: Tensor, shape: Sequence[int], order: Order) -> Tensor:
    """The truth values that were packed.

    Arguments:
        shape: of what was packed.
        order: in which bits follow each other.
    """
    order = tuple(order)
    flags = empty_in_order(shape, order, torch.empty(0, dtype=torch.bool, device=bits.device))
    if bits.device.type == "cpu":
        unpack_flags_of(flags.data_ptr(), bits.data_ptr(), flags.numel(), torch.get_num_threads())
    else:
        rows = flags.permute(order).view(-1)
        for first, last in spans(rows.numel(), PIECE):
            rows[first:last] = unpacked_by_torch(bits, first, last)
    return flags


@final
@dataclass(frozen=True)
class Flags(AbstractFamily):
    """Bools of the forward cross as bits; tests of saved values are made in the forward. Exact."""

    name: ClassVar[str] = "flags"
    kind: ClassVar[str] = SAVED
    kernels: ClassVar[Mapping[str, Kernel]] = {
        "pack_flags": KERNELS["pack_flags"],
        "unpack_flags": Kernel(unpack_flags),
    }

    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:  # noqa: ARG002  # exact at any level
        for number in builder.graph.program:
            recipe = builder.recipes[number]
            if len(recipe.outputs) != 1 or recipe.effect is not Effect.PURE or not _is_flag(builder, recipe.outputs[0]):
                continue
            replaces = _late_readers(builder, recipe)
            options = _crossing(builder, recipe, replaces) if replaces else []
            if not replaces and (replaces := _tests_of_saved(builder, recipe)):
                options = _made_early(builder, recipe, replaces)
            if options:
                builder.group(self.kind, f"{self.name} {recipe.id}", replaces, options)


def _is_flag(builder: GraphBuilder, value: int) -> bool:
    """Whether a value is truth, fills its bytes, and is worth packing."""
    found = builder.values[value]
    geometry = found.geometry
    if geometry is None or geometry.dtype != "bool" or found.leaves is not None or found.persistent:
        return False
    return geometry.numel >= SMALL_B and dense_order(geometry) is not None


def _late_readers(builder: GraphBuilder, maker: Recipe) -> tuple[int, ...]:
    """The recipes of later segments that read what a recipe makes; none if they are too many, or taken."""
    readers = builder.readers.get(maker.outputs[0], ())
    late = tuple(r for r in readers if builder.recipes[r].segment > maker.segment)
    if not late or len(late) > _MOST_READERS or len({builder.recipes[r].segment for r in late}) != 1:
        return ()
    pure = all(builder.recipes[r].effect is Effect.PURE for r in late)
    return late if pure and builder.may_replace(late) and builder.is_free(late) else ()


def _crossing(builder: GraphBuilder, maker: Recipe, late: tuple[int, ...]) -> list[Option]:
    """Packed where they are made, unpacked for those who read them late."""
    flag = builder.values[maker.outputs[0]]
    assert flag.geometry is not None, "only a flag with a geometry gets here"
    again = builder.value(f"{flag.name}_again", flag.geometry)
    recipes = _through_bits(builder, maker, builder.recipes[late[0]], builder.read(flag.id), again)
    for reader in (builder.recipes[r] for r in late):
        reads = tuple(replace(r, value=again) if r.value == flag.id else r for r in reader.reads)
        recipes.append(
            builder.recipe(
                reader,
                reader.op,
                outputs=reader.outputs,
                reads=reads,
                args=reader.args,
                kwargs=reader.kwargs,
                paths=reader.paths,
            )
        )
    return [Option("from bits", tuple(recipes))]


def _through_bits(builder: GraphBuilder, early: Recipe, late: Recipe, flag: Read, again: int) -> list[int]:
    """Recipes that pack a flag at one place and make it, or its like, from the bits at another."""
    geometry = flag.geometry
    order = dense_order(geometry)
    assert geometry is not None, "only a flag with a geometry gets here"
    assert order is not None, "only a dense flag gets here"
    bits = builder.value(f"{builder.values[flag.value].name}_bits", bits_geometry(geometry))
    reads, args = bound(flag, as_argument(order))
    pack = builder.recipe(early, "lowtide.pack_flags", outputs=[bits], reads=reads, args=args)
    reads, args = bound(builder.read(bits), Items(geometry.shape), as_argument(order))
    return [pack, builder.recipe(late, "lowtide.unpack_flags", outputs=[again], reads=reads, args=args)]


def _tests_of_saved(builder: GraphBuilder, last: Recipe) -> tuple[int, ...]:
    """The tests of one segment that end in a recipe and begin with values of earlier ones; none if there are others.

    What is tested has to be an activation: what is there anyway need not be packed.
    """
    if last.segment == 0 or not _is_test(last):
        return ()
    tests = list(_back_from(builder, last))
    inside = {t.id for t in tests}
    saved = {r.value for t in tests for r in t.reads if builder.maker.get(r.value) not in inside}
    makers = [builder.made_by(v) for v in saved]
    early = all(m is not None and m.segment < last.segment for m in makers)
    closed = all(inside.issuperset(builder.readers.get(t.outputs[0], ())) for t in tests if t is not last)
    outer = not inside.issuperset(builder.readers.get(last.outputs[0], ()))
    whole = tuple(sorted(inside))
    followed = any(_is_test(builder.recipes[r]) for r in builder.readers.get(last.outputs[0], ()))
    ends = outer and not followed
    return whole if early and closed and ends and builder.is_free(whole) else ()


def _is_test(recipe: Recipe) -> bool:
    return recipe.op in _TESTS and not recipe.kwargs and len(recipe.outputs) == 1


def _back_from(builder: GraphBuilder, last: Recipe) -> Iterator[Recipe]:
    """A recipe, and the tests of its segment that it follows from; each once, the last first."""
    seen: set[int] = set()
    pending = [last]
    while pending:
        recipe = pending.pop()
        if recipe.id in seen:
            continue
        seen.add(recipe.id)
        yield recipe
        makers = (builder.made_by(r.value) for r in recipe.reads)
        pending += [m for m in makers if m is not None and m.segment == last.segment and _is_test(m)]


def _made_early(builder: GraphBuilder, last: Recipe, tests: tuple[int, ...]) -> list[Option]:
    """The same tests in the segment of what they test, packed there; the last one's result from the bits."""
    makers = [
        m for t in tests for r in builder.recipes[t].reads if (m := builder.made_by(r.value)) and m.id not in tests
    ]
    early = max(makers, key=lambda m: builder.graph.program.index(m.id))
    like: dict[int, int] = {}
    recipes = []
    for test in (builder.recipes[t] for t in builder.graph.program if t in tests):
        value = builder.values[test.outputs[0]]
        assert value.geometry is not None, "capture gives every value a geometry"
        like[value.id] = builder.value(f"{value.name}_early", value.geometry)
        reads = tuple(replace(r, value=like.get(r.value, r.value)) for r in test.reads)
        recipes.append(builder.recipe(early, test.op, outputs=[like[value.id]], reads=reads, args=test.args))
    flag = builder.read(like[last.outputs[0]])
    return [Option("tested early", (*recipes, *_through_bits(builder, early, last, flag, last.outputs[0])))]
