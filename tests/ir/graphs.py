"""Random graphs: several outputs, views, consumption, groups, segments, parts, random recipes with replays."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from lowtide.ir.call import Read, View
from lowtide.ir.graph import Effect, Graph, Role
from tests.ir.sketch import Sketch

SIZES_B = st.sampled_from([0, 1, 8, 8, 24, 100, 1000])
PARTS = st.sampled_from([(0,), (0,), (0, 0), (0, 0), (0, 0, 0), (0, 1), (0, 0, 1), (0, 1, 1, 0)])
CHANCE = st.integers(0, 99)


@dataclass
class _State:
    """What the program may still read: value -> parts that may touch it."""

    there: dict[int, set[int]] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A consistent graph with up to four segments and about a dozen recipes."""
    sketch = Sketch(parts=draw(PARTS))
    state = _State()
    every = set(sketch.parts)
    engines = draw(st.sampled_from([["compute"]] * 4 + [["compute", "compute", "comm"]]))
    for role in draw(st.lists(st.sampled_from([Role.PARAMETER, Role.BUFFER, Role.INPUT, Role.CONSTANT]), max_size=3)):
        state.there[sketch.persistent(draw(SIZES_B), role)] = every
    for segment, part in enumerate(sketch.parts):
        _arrivals(draw, sketch, state, segment, part)
        for _ in range(draw(st.integers(1, 4))):
            _recipe(draw, sketch, state, segment, draw(st.sampled_from(engines)))
        _leaving(draw, sketch, state, segment)
    _alternatives(draw, sketch)
    _limits(draw, sketch)
    return sketch.build()


def _happens(draw: st.DrawFn, percent: int) -> bool:
    return draw(CHANCE) < percent


def _arrivals(draw: st.DrawFn, sketch: Sketch, state: _State, segment: int, part: int) -> None:
    for _ in range(draw(st.integers(0 if segment else 1, 2))):
        state.there[sketch.value(draw(SIZES_B), Role.TANGENT if segment else Role.INPUT, arrives=segment)] = {part}
    for value in sketch.values:  # links between the parts of a bundle
        linked = value.leaves is not None and value.leaves < segment and value.arrives is None
        if linked and sketch.parts[value.leaves or 0] != part and _happens(draw, 70):
            sketch.change(value.id, arrives=segment)
            state.there[value.id] = {part, *state.there.get(value.id, ())}


def _recipe(draw: st.DrawFn, sketch: Sketch, state: _State, segment: int, engine: str) -> None:
    part = sketch.parts[segment]
    there = [v for v, parts in state.there.items() if part in parts]
    reads = draw(st.lists(st.sampled_from(there), max_size=3, unique=True)) if there else []
    outputs = [sketch.value(draw(SIZES_B)) for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3])))]
    consumes = []
    if reads and _happens(draw, 25) and _may_consume(sketch, state, reads[0]):
        consumes = _consumption(draw, sketch, state, reads[0], outputs)
    effect = draw(st.sampled_from([Effect.PURE] * 6 + [Effect.RANDOM] * 3 + [Effect.OPAQUE]))
    saved = sketch.value(16, Role.GENERATOR) if effect is Effect.RANDOM and _happens(draw, 80) else None
    number = len(sketch.recipes)
    view = (View("aten.view.default", ()),)
    sketch.recipe(
        f"f{number}",
        [Read(v, view if _happens(draw, 20) else ()) for v in reads],
        outputs,
        inner_B=draw(st.lists(st.sampled_from([4, 50, 500]), max_size=2)),
        workers_B=draw(st.sampled_from([0, 0, 0, 30])),
        consumes=consumes,
        effect=effect,
        state=saved,
        segment=segment,
        time_s=float(draw(st.integers(0, 9))),
        engine=engine if effect is Effect.PURE else "compute",
    )
    if saved is not None and _happens(draw, 80):
        sketch.again(number, effect=Effect.PURE, consumes=())
        state.there[saved] = {part}
    state.there.update((v, {part}) for v in outputs)


def _may_consume(sketch: Sketch, state: _State, value: int) -> bool:
    facts = sketch.values[value]
    return value not in state.held and (not facts.persistent or facts.role in {Role.PARAMETER, Role.BUFFER})


def _consumption(
    draw: st.DrawFn, sketch: Sketch, state: _State, value: int, outputs: list[int]
) -> list[tuple[int, int | None]]:
    facts = sketch.values[value]
    del state.there[value]
    if not facts.persistent and _happens(draw, 20):
        return [(value, None)]
    sketch.change(outputs[0], size_B=facts.size_B)
    if facts.persistent:
        sketch.change(outputs[0], role=Role.UPDATE, leaves=len(sketch.parts) - 1)
        state.held.add(outputs[0])
    return [(value, 0)]


def _leaving(draw: st.DrawFn, sketch: Sketch, state: _State, segment: int) -> None:
    for value in list(state.there):
        facts = sketch.values[value]
        if facts.leaves is not None or not _happens(draw, 25):
            continue
        held = facts.persistent or _happens(draw, 60)
        role = draw(st.sampled_from([Role.OUTPUT, Role.GRADIENT])) if facts.role is Role.ACTIVATION else facts.role
        sketch.change(value, leaves=segment, held=held, role=role)
        if held:
            state.held.add(value)
        else:
            del state.there[value]


def _alternatives(draw: st.DrawFn, sketch: Sketch) -> None:
    grouped: set[int] = set()
    for original in list(sketch.program):
        recipe = sketch.recipes[original]
        if recipe.consumes or original in grouped or recipe.engine != "compute" or not _happens(draw, 40):
            continue
        kind = draw(st.sampled_from(["implementation", "in place", "packed", "fused"]))
        if kind == "implementation":
            other = sketch.again(original, inner_B=[draw(st.sampled_from([7, 70, 700]))], time_s=0.5)
            if recipe.effect is not Effect.PURE or _happens(draw, 50):
                sketch.group(f"g{original}", [original], [other])
                grouped.add(original)
        elif kind == "in place" and recipe.effect is Effect.PURE:
            heirs = list(enumerate(recipe.outputs))
            pairs = [(r.value, k) for r in recipe.reads for k, v in heirs if _same_size(sketch, r.value, v)]
            if pairs and len({r.value for r in recipe.reads}) == len(recipe.reads):
                other = sketch.again(original, consumes=[draw(st.sampled_from(pairs))])
                if _happens(draw, 50):
                    sketch.group(f"g{original}", [original], [other])
                    grouped.add(original)
        elif kind == "packed":
            value = recipe.outputs[0]
            small = sketch.value(sketch.values[value].size_B // 8)
            packing = sketch.recipe("pack", [value], [small], segment=recipe.segment, program=False)
            sketch.recipe("unpack", [small], [value], segment=recipe.segment, program=False)
            if recipe.effect is not Effect.OPAQUE:
                facts = {"effect": recipe.effect, "state": recipe.state}
                reads = [r.value for r in recipe.reads]
                tensors = [v for v in recipe.outputs if v != recipe.state]
                other = sketch.fused([original, packing], reads, [*tensors, small], **facts)
                sketch.group(f"g{original}", [original], [other])
                grouped.add(original)
        elif kind == "fused":
            _fuse(draw, sketch, original, grouped)


def _same_size(sketch: Sketch, a: int, b: int) -> bool:
    return sketch.values[a].size_B == sketch.values[b].size_B


def _fuse(draw: st.DrawFn, sketch: Sketch, first: int, grouped: set[int]) -> None:
    """Two recipes as one, without the first one's outputs."""
    one = sketch.recipes[first]
    for second in sketch.program:
        two = sketch.recipes[second]
        same_place = two.segment == one.segment and second not in grouped and second != first
        plain = two.effect is one.effect is Effect.PURE and not two.consumes
        if same_place and plain and {r.value for r in two.reads} & set(one.outputs):
            reads = dict.fromkeys(r.value for r in (*one.reads, *two.reads) if r.value not in one.outputs)
            other = sketch.fused([first, second], list(reads), two.outputs)
            if _happens(draw, 50):
                sketch.group(f"g{first}", [first, second], [other])
                grouped.update((first, second))
            return


def _limits(draw: st.DrawFn, sketch: Sketch) -> None:
    """Some persistent values are overwritten by the caller after their last reading segment."""
    for value in sketch.values:
        reading = [r.segment for r in sketch.recipes if value.id in r.read_values]
        consumed = any(t.value == value.id for r in sketch.recipes for t in r.consumes)
        if value.persistent and reading and value.leaves is None and not consumed and _happens(draw, 30):
            sketch.change(value.id, readable_through=max(reading))
