"""Runs of elementwise operators in a program: which recipes one kernel can carry out tile by tile."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lowtide.ir.call import Read, Ref
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, Recipe
from lowtide.ops.boxes import VECTOR
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.elementwise import APPROXIMATED, NUMBERS, ROUNDED, is_exact

FLOATS = frozenset({"float64", "float32", "bfloat16", "float16"})
_LEAST = 4096  # elements: below, a call costs more than what it does
_MOST = 48  # steps of a run
_SOON = 1e-6  # of a place in the program: after what a run waits for, before what comes next
_MASKED = {"aten.where.self": 0, "aten.masked_fill.Scalar": 1, "aten.native_dropout_backward.default": 1}
"""Which argument is a mask."""
_ANY = frozenset({"aten._to_copy.default", "aten.clone.default"})
_KEYWORDS = frozenset({"dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format"})
"""Of copies: what they say is what the result's geometry says."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A recipe that may be in a run; equal to itself alone.

    Arguments:
        recipe: with one result.
        result: geometry of that.
        reads: geometry of what each `Ref` is passed.
        leaves_choice: whether its kernel may round elements differently by where they lie.
    """

    recipe: Recipe
    result: Geometry
    reads: tuple[Geometry, ...]
    leaves_choice: bool

    @property
    def value(self) -> int:
        """What it makes."""
        return self.recipe.outputs[0]


def members(builder: GraphBuilder) -> dict[int, Member]:
    """The program's recipes that may be in a run, by what they make. No group has them yet."""
    found = (_member(builder, builder.recipes[r]) for r in builder.graph.program if builder.is_free([r]))
    return {m.value: m for m in found if m is not None}


def runs(builder: GraphBuilder, known: dict[int, Member]) -> list[tuple[Member, ...]]:
    """Joins members to what they read, as long as a run can take the place of its recipes. O(program) for short runs.

    Arguments:
        known: members by what they make.

    Returns: disjoint runs in program order, single members too.
    """
    place = {r: i for i, r in enumerate(builder.graph.program)}
    run_of: dict[int, tuple[Member, ...]] = {}
    for member in known.values():
        run: tuple[Member, ...] = (member,)
        for read in member.recipe.reads:
            maker = known.get(read.value)
            if maker is None or maker.recipe.segment != member.recipe.segment or maker in run:
                continue
            both = tuple(sorted({*run_of[maker.value], *run}, key=lambda m: place[m.recipe.id]))
            if len(both) <= _MOST and fits_together(builder, both) and _has_a_place(builder, both, place):
                run = both
        run_of.update((m.value, run) for m in run)
    found = list(dict.fromkeys(run_of.values()))
    several = [run for run in found if len(run) > 1]
    if _settle(builder, several, place):
        return found
    kept: list[tuple[Member, ...]] = []
    for run in several:
        if _settle(builder, [*kept, run], place):
            kept.append(run)
    left = {m.value for run in found for m in run} - {m.value for run in kept for m in run}
    return [*kept, *((known[v],) for v in sorted(left))]


def fits_together(builder: GraphBuilder, run: Collection[Member]) -> bool:
    """Whether one kernel can carry members out: see `lowtide.ops.tiles.tiled`.

    Either all tensors are one row of elements, in the same order in memory; or all are of one shape, or broadcast to
    it, and no step leaves a choice, or rows are whole vectors.
    """
    made = {m.value for m in run}
    first = next(iter(run))
    if len({m.result.device for m in run}) > 1:
        return False
    inner = [(r, g) for m in run for r, g in zip(m.recipe.reads, m.reads, strict=True) if r.value in made]
    if is_one_row(run):
        rows = all(_is_row(m.result) for m in run)
        return all(_is_whole(builder, r, g, rows) for r, g in inner)
    if any(m.result.shape != first.result.shape for m in run):
        return False
    if leaves_choice(run) and not all(_in_vectors(m) for m in run):
        return False
    if not all(_broadcasts(g.shape, m.result.shape) for m in run for g in m.reads):
        return False
    return all(_is_whole(builder, r, g, rows=False) for r, g in inner)


def is_one_row(run: Collection[Member]) -> bool:
    """Whether all tensors of a run, but for those without dimensions, have their elements in one order in memory."""
    first = next(iter(run))
    same = all(_ordered_like(m.result, first.result) for m in run) or all(_is_row(m.result) for m in run)
    return same and all(not g.shape or _ordered_like(g, m.result) for m in run for g in m.reads)


def leaves_choice(run: Collection[Member]) -> bool:
    """Whether some step of a run may round elements differently by where they lie."""
    return any(m.leaves_choice for m in run)


def _in_vectors(member: Member) -> bool:
    """Whether rows of whole vectors are passed, and made."""
    extent = member.result.shape[-1]
    rows = all(not g.shape or (g.shape[-1] == extent and g.stride[-1] == 1) for g in member.reads)
    return rows and extent % VECTOR == 0 and _is_row(member.result)


def _is_whole(builder: GraphBuilder, read: Read, passed: Geometry, rows: bool) -> bool:
    """Whether a value is passed element for element: as it is, or as the same row in another shape."""
    whole = builder.values[read.value].geometry
    if whole is None:
        return False
    same = passed.shape == whole.shape and passed.stride == whole.stride and passed.offset == whole.offset
    return same or (rows and _is_row(whole) and _is_row(passed) and whole.numel == passed.numel and passed.offset == 0)


def _has_a_place(builder: GraphBuilder, run: Collection[Member], place: dict[int, int]) -> bool:
    """Whether all that a run reads is there before anyone else needs what it makes."""
    mine = {m.recipe.id for m in run}
    given, made = _sides(run)
    after = max((place[builder.maker[v]] for v in given if v in builder.maker), default=-1)
    readers = (place[r] for v in made for r in builder.readers.get(v, ()) if r not in mine)
    return after < min(readers, default=len(place))


def _settle(builder: GraphBuilder, chosen: Sequence[Collection[Member]], place: dict[int, int]) -> bool:
    """Whether runs have a place all together: what one makes comes as soon as all is there that it reads, not before.

    O(runs) where none waits for another; a circle of runs that wait for each other has none.
    """
    comes = {v: float(place[r]) for v, r in builder.maker.items()}
    sides = [_sides(run) for run in chosen]
    for _ in range(len(sides) + 1):
        moved = False
        for given, made in sides:
            after = max((comes[v] for v in given if v in comes), default=-1.0) + _SOON
            for v in made:
                moved |= comes[v] < after
                comes[v] = max(comes[v], after)
        if not moved:
            break
    else:
        return False
    mine = [{m.recipe.id for m in run} for run in chosen]
    readers = [
        [place[r] for v in made for r in builder.readers.get(v, ()) if r not in own]
        for (_, made), own in zip(sides, mine, strict=True)
    ]
    return all(
        max((comes[v] for v in given if v in comes), default=-1.0) < min(others, default=len(place))
        for (given, _), others in zip(sides, readers, strict=True)
    )


def _sides(run: Collection[Member]) -> tuple[set[int], set[int]]:
    """What a run reads from outside, and what it makes."""
    made = {m.value for m in run}
    return {r.value for m in run for r in m.recipe.reads} - made, made


def _member(builder: GraphBuilder, recipe: Recipe) -> Member | None:
    if recipe.op not in ROUNDED and recipe.op not in APPROXIMATED:
        return None
    if recipe.effect is not Effect.PURE or recipe.state is not None or recipe.consumes or len(recipe.outputs) != 1:
        return None
    value = builder.values[recipe.outputs[0]]
    result = value.geometry
    reads = tuple(r.geometry for r in recipe.reads if r.geometry is not None)
    if result is None or len(reads) < len(recipe.reads) or not recipe.reads or result.numel < _LEAST:
        return None
    if not result.is_dense or result.extent_B != value.size_B or not _is_plain(recipe, result, reads):
        return None
    return Member(recipe, result, reads, recipe.op in APPROXIMATED or _has_factor(recipe))


def _is_plain(recipe: Recipe, result: Geometry, reads: tuple[Geometry, ...]) -> bool:
    """Whether a kernel computes in the result's dtype, casts nothing in between, and has its arguments in text form."""
    if any(not isinstance(a, Ref | bool | int | float | str | None) for a in recipe.args):
        return False
    if any(g.device != result.device for g in reads):
        return False
    if recipe.op in _ANY:
        return len(reads) == 1 and {k for k, _ in recipe.kwargs} <= _KEYWORDS
    if any(not isinstance(a, bool | int | float | str | None) for _, a in recipe.kwargs):
        return False
    mask = _MASKED.get(recipe.op)
    masks = {a.index for i, a in enumerate(recipe.args) if isinstance(a, Ref) and i == mask}
    if any(reads[i].dtype != "bool" for i in masks):
        return False
    dtypes = {g.dtype for i, g in enumerate(reads) if i not in masks}
    if recipe.op in NUMBERS and not _has_plain_number(recipe, dtypes, result.device):
        return False
    return (
        len(dtypes) <= 1 and dtypes <= {*FLOATS, "bool"} and result.dtype in (dtypes | {"bool"} if dtypes else FLOATS)
    )


def _has_plain_number(recipe: Recipe, dtypes: Collection[str], device: str) -> bool:
    """Whether the second argument is a tensor, or a number of which on the processor a tensor can be made."""
    first, second = recipe.args[:2]
    if not isinstance(first, Ref) or not isinstance(second, Ref | int | float):
        return False
    return isinstance(second, Ref) or device != "cpu" or all(is_exact(second, d) for d in dtypes)


def _has_factor(recipe: Recipe) -> bool:
    """Whether a sum has a factor for its second term: a sum of products, which may be rounded once or twice."""
    return any(k == "alpha" and a != 1 for k, a in recipe.kwargs)


def _ordered_like(a: Geometry, b: Geometry) -> bool:
    """Whether two tensors of one shape have their elements in the same places, and are dense."""
    if a.shape != b.shape or not a.is_dense:
        return False
    return all(x == y for n, x, y in zip(a.shape, a.stride, b.stride, strict=True) if n > 1)


def _is_row(geometry: Geometry) -> bool:
    expected = 1
    for extent, stride in zip(reversed(geometry.shape), reversed(geometry.stride), strict=True):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return True


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    extra = len(to) - len(shape)
    return extra >= 0 and all(n in (1, t) for n, t in zip(shape, to[extra:], strict=True))


def order(builder: GraphBuilder, chosen: Iterable[Member]) -> list[Member]:
    """Members in program order."""
    place = {r: i for i, r in enumerate(builder.graph.program)}
    return sorted(set(chosen), key=lambda m: place[m.recipe.id])
