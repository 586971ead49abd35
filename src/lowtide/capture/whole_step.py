"""A captured training graph with the optimizer's updates in its backward.

Gradients stay inside, and each parameter's update stands as soon as its gradient is complete, behind the last recipe
that reads the parameter as it was. The caller runs both segments one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_
from typing import Any

import msgspec
from msgspec.structs import replace

from lowtide.ir.call import Arg, Const, Held, Items, NamedArg, Read, Ref
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, MiniTrace, Origin, Recipe, Role, Takeover, Value
from lowtide.ir.housing import movable_values
from lowtide.ir.interface import Interface, Result
from lowtide.ir.layout import SMALL_B
from lowtide.ir.schedule import HOST_ENGINE

WEIGHT = ""
"""Among what a backward is given besides, the parameter itself."""
GATHERED = "gathered"
"""Among what a backward is given besides, the sum of a parameter's gradients so far."""
_BACKWARD = 1  # its segment
_COUNTER_B = 8


@dataclass(frozen=True, kw_only=True)
class Update:
    """How one parameter is updated.

    Arguments:
        weight: its value.
        op, kwargs: what is called, with (weight, gradient, states).
        states: names and geometries of what is kept for it from step to step.
        by: the object on whose behalf the kernel runs, as the keyword of that name.
        laid_out: whether the gradient has to lie in memory as the parameter does.
        waits: whether it is for a later call; what is kept for the parameter is there all the same.
    """

    weight: int
    op: str
    kwargs: tuple[NamedArg, ...]
    states: tuple[tuple[str, Geometry], ...]
    by: tuple[str, object]
    laid_out: bool = False
    waits: bool = False


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Clipping by the norm of all gradients.

    Arguments:
        order: parameters, as values, in the order in which their norms are added up.
    """

    max_norm: float
    norm_type: float
    order: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class WholeStep:
    """A captured graph with updates.

    Arguments:
        interfaces: of forward and backward. Behind what autograd would give them both take the values of `added`, the
            forward without parameters, which it has. The backward gives the total norm, if there is clipping, and the
            gradients that are handed over.
        held: what the `Held` arguments of its recipes stand for.
        added: what the backward is given besides: per value its parameter, and the name of the state, or `WEIGHT`.
        movable: what may be host-resident: those, and all parameters.
    """

    graph: Graph
    interfaces: tuple[Interface, Interface]
    held: list[Any]
    added: dict[int, tuple[int, str]]
    movable: tuple[int, ...]


def whole_step(
    graph: Graph,
    interfaces: Sequence[Interface],
    held: Sequence[Any],
    updates: Sequence[Update],
    *,
    clip: Clip | None = None,
    gathered: Sequence[int] = (),
    leaving: Sequence[int] = (),
    on_host: bool = False,
) -> WholeStep:
    """Adds updates to a training graph.

    Arguments:
        graph: of a forward and its backward, with implementations.
        interfaces: of both.
        updates: per parameter that is updated inside.
        clip: what its gradient is scaled by before.
        gathered: parameters whose gradient is added to what earlier calls left.
        on_host: whether updates may run on the host's engine as well.
        leaving: parameters whose gradients are handed to the caller instead, as the backward's last results.

    O(graph).
    """
    merging = _Merging(graph, interfaces, held)
    gradients = merging.gradients()
    last = any(not u.waits for u in updates)
    for weight in gathered:
        gradients[weight] = merging.gather(weight, gradients[weight], last)
    for weight in dict.fromkeys(
        (*(u.weight for u in updates if u.laid_out and not u.waits), *(() if clip is None else clip.order))
    ):
        gradients[weight] = merging.laid_out(weight, gradients[weight])
    if clip is not None:
        merging.clip(clip, gradients)
    for update in updates:
        merging.update(update, gradients[update.weight], on_host)
    for weight in leaving:
        merging.hand_over(gradients[weight])
    return merging.finish()


@dataclass(eq=False)
class _Merging:
    """The graph under construction."""

    graph: Graph
    interfaces: Sequence[Interface]
    given: Sequence[Any]
    values: list[Value] = field(init=False)
    recipes: list[Recipe] = field(init=False)
    held: list[Any] = field(init=False)
    added: dict[int, tuple[int, str]] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    behind: dict[int, list[int]] = field(default_factory=dict)  # place in the old program -> new recipes after it
    place_of: dict[int, int] = field(default_factory=dict)  # value -> place behind which it is there

    def __post_init__(self) -> None:
        graph = self.graph
        self.held = list(self.given)
        self.values = [_kept(v) for v in graph.values]
        self.recipes = list(graph.recipes)
        for place, recipe in enumerate(graph.program):
            self.place_of.update((v, place) for v in graph.recipes[recipe].outputs)
        self.turn = next((i for i, r in enumerate(graph.program) if graph.recipes[r].segment > 0), len(graph.program))
        self.last_read = _last_reads(graph)

    def gradients(self) -> dict[int, Read]:
        """Per parameter that gets one, where its gradient is."""
        found: dict[int, Read] = {}
        forward, backward = self.interfaces
        for value, result in zip(forward.arguments, backward.results, strict=False):
            if value is not None and isinstance(result, Read):
                found[value] = self._own(result, value)
        return found

    def _own(self, gradient: Read, weight: int) -> Read:
        """The gradient as bytes that no update overwrites: another parameter's content may be one."""
        if gradient.geometry is None and not gradient.views:
            gradient = replace(gradient, geometry=self.values[gradient.value].geometry)
        if not self.values[gradient.value].persistent:
            return gradient
        return self._call("aten.clone.default", (gradient,), (Ref(0),), self.values[weight].geometry, "gradient")

    def laid_out(self, weight: int, gradient: Read) -> Read:
        """The gradient in the parameter's order of elements, copied where it is in another one."""
        geometry = self.values[weight].geometry
        if gradient.geometry is not None and geometry is not None and gradient.geometry.has_bytes_of(geometry):
            return gradient
        reads = (gradient, Read(weight, (), geometry))
        return self._call("lowtide.laid_out", reads, (Ref(0), Ref(1)), geometry, "gradient")

    def gather(self, weight: int, gradient: Read, last: bool) -> Read:
        """Adds a gradient and those of earlier calls; where more are to come, over those.

        Returns: where the sum is.
        """
        parameter = self.values[weight]
        there = self._persistent(weight, GATHERED, parameter.geometry, Role.GRADIENT)
        read = Read(there, (), parameter.geometry)
        if last:
            total = self._call("aten.add.Tensor", (gradient, read), (Ref(0), Ref(1)), parameter.geometry, "sum")
            self._in_place(self.recipes[-1], "aten.add_.Tensor")
            return total
        heir = self._heir(there)
        self._add("lowtide.gather", (read, gradient), (Ref(0), Ref(1)), (heir,), consumes=(Takeover(there, 0),))
        return Read(heir, (), parameter.geometry)

    def clip(self, clip: Clip, gradients: dict[int, Read]) -> None:
        """Scales gradients by what their norm together asks for."""
        norms = tuple(self._norm(gradients[weight], clip.norm_type) for weight in clip.order)
        scalar = norms[0].geometry
        total, scale = self._value("total_norm", scalar), self._value("clip_coefficient", scalar)
        many = Items(tuple(Ref(i) for i in range(len(norms))))
        kwargs = (("max_norm", clip.max_norm), ("norm_type", Const("float", repr(clip.norm_type))))
        self._add("lowtide.clip_coefficient", norms, (many,), (total, scale), kwargs=kwargs)
        self._leave(total, Role.OUTPUT)
        self.results.append(Read(total, (), scalar))
        for weight in clip.order:
            reads = (gradients[weight], Read(scale, (), scalar))
            scaled = self._call("aten.mul.Tensor", reads, (Ref(0), Ref(1)), gradients[weight].geometry, "clipped")
            self._in_place(self.recipes[-1], "aten.mul_.Tensor")
            gradients[weight] = scaled

    def _norm(self, gradient: Read, norm_type: float) -> Read:
        assert gradient.geometry is not None, "capture gives every value a geometry"
        scalar = Geometry(gradient.geometry.dtype, (), (), device=gradient.geometry.device)
        return self._call(
            "aten.linalg_vector_norm.default", (gradient,), (Ref(0), Const("float", repr(norm_type))), scalar, "norm"
        )

    def _in_place(self, plain: Recipe, op: str) -> None:
        """The same over the gradient's own bytes, where those are wanted no more."""
        value, heir = self.values[plain.reads[0].value], self.values[plain.outputs[0]]
        geometry = plain.reads[0].geometry
        free = not value.persistent and value.arrives is None and value.leaves is None
        if not free or geometry is None or heir.geometry is None or value.size_B != heir.size_B:
            return
        if not (geometry.is_dense and geometry.has_bytes_of(heir.geometry)):
            return
        candidate = replace(plain, id=len(self.recipes), op=op, consumes=(Takeover(value.id, 0),))
        self.recipes.append(replace(candidate, trace=MiniTrace((), (None,))))

    def update(self, update: Update, gradient: Read, on_host: bool) -> None:
        """Adds one update, and perhaps the same on the host."""
        self._change(update.weight, role=Role.PARAMETER)
        weight = self.values[update.weight]
        names = " ".join(name for name, _ in update.states)
        states = [self._persistent(update.weight, name, g, Role.STATE) for name, g in update.states]
        if update.waits:
            return
        heirs = tuple(self._heir(v) for v in (update.weight, *states))
        kept = (Read(v, (), g) for v, (_, g) in zip(states, update.states, strict=True))
        reads = (Read(update.weight, (), weight.geometry), gradient, *kept)
        key, by = update.by
        self.held.append(by)
        live: NamedArg = (key, Held(len(self.held) - 1))
        many = Items(tuple(Ref(2 + i) for i in range(len(states))))
        kwargs = (*update.kwargs, ("names", names), live)
        consumes = tuple(Takeover(v, i) for i, v in enumerate((update.weight, *states)))
        self._add(update.op, reads, (Ref(0), Ref(1), many), heirs, kwargs=kwargs, consumes=consumes)
        if on_host:
            self.recipes.append(replace(self.recipes[-1], id=len(self.recipes), engine=HOST_ENGINE))
        if update.weight not in self.interfaces[1].arguments:
            self.added[update.weight] = (update.weight, WEIGHT)

    def hand_over(self, gradient: Read) -> None:
        """Gives a gradient to the caller when the step ends."""
        self._leave(gradient.value, Role.GRADIENT)
        self.results.append(gradient)

    # building ------------------------------------------------------------------------------------------------

    def _value(self, name: str, geometry: Geometry | None, **facts: Any) -> int:
        size_B = 0 if geometry is None else geometry.extent_B
        role = facts.pop("role", Role.ACTIVATION)
        self.values.append(Value(len(self.values), name, size_B, role, geometry, **facts))
        return self.values[-1].id

    def _persistent(self, weight: int, name: str, geometry: Geometry | None, role: Role) -> int:
        """Something that is kept for a parameter from step to step."""
        named = f"{self.values[weight].name}.{name}"
        movable = _may_move(geometry)
        value = self._value(named, geometry, role=role, arrives=0, persistent=True, movable=movable)
        self.added[value] = (weight, name)
        return value

    def _heir(self, value: int) -> int:
        """What is in a persistent value's place at the end of the step."""
        old = self.values[value]
        heir = self._value(f"{old.name} updated", old.geometry, role=old.role, leaves=_BACKWARD, replaces=value)
        self._change(heir, size_B=old.size_B)
        return heir

    def _change(self, value: int, **facts: Any) -> None:
        self.values[value] = replace(self.values[value], **facts)

    def _leave(self, value: int, role: Role) -> None:
        if not self.values[value].persistent:
            self._change(value, leaves=_BACKWARD, held=True, role=role)

    def _call(
        self, op: str, reads: tuple[Read, ...], args: tuple[Arg, ...], geometry: Geometry | None, name: str
    ) -> Read:
        """One more recipe with one result of its own."""
        value = self._value(name, geometry)
        self._add(op, reads, args, (value,))
        return Read(value, (), geometry)

    def _add(
        self,
        op: str,
        reads: tuple[Read, ...],
        args: tuple[Arg, ...],
        outputs: tuple[int, ...],
        *,
        kwargs: tuple[NamedArg, ...] = (),
        consumes: tuple[Takeover, ...] = (),
    ) -> None:
        """Adds a recipe as soon as what it reads is there, and nobody else wants what it overwrites."""
        place = max((self.place_of.get(r.value, -1) for r in reads), default=-1)
        place = max([place, self.turn - 1, *(self.last_read.get(t.value, -1) for t in consumes)])
        heirs = {t.output for t in consumes}
        sizes_B = [self.values[v].size_B for i, v in enumerate(outputs) if i not in heirs]
        places = iter(range(len(sizes_B)))
        trace = MiniTrace(tuple(sizes_B), tuple(None if i in heirs else next(places) for i in range(len(outputs))))
        recipe = Recipe(
            id=len(self.recipes),
            op=op,
            outputs=outputs,
            reads=reads,
            paths=tuple((i,) for i in range(len(outputs))) if len(outputs) > 1 else ((),),
            args=args,
            kwargs=kwargs,
            segment=_BACKWARD,
            consumes=consumes,
            trace=trace,
            origin=Origin(text="the optimizer's step"),
        )
        self.recipes.append(recipe)
        self.behind.setdefault(place, []).append(recipe.id)
        self.place_of.update((v, place) for v in outputs)
        for read in reads:
            self.last_read[read.value] = max(self.last_read.get(read.value, -1), place)

    def finish(self) -> WholeStep:
        """The whole of it."""
        program: list[int] = list(self.behind.get(-1, ()))
        for place, recipe in enumerate(self.graph.program):
            program += [recipe, *self.behind.get(place, ())]
        graph = replace(self.graph, values=tuple(self.values), recipes=tuple(self.recipes), program=tuple(program))
        forward, backward = self.interfaces
        arguments = (*backward.arguments, *self.added)
        kept = (v for v, (_, name) in self.added.items() if name != WEIGHT)
        forward = replace_(forward, arguments=(*forward.arguments, *kept))
        interfaces = (forward, replace_(backward, arguments=arguments, results=tuple(self.results)))
        return WholeStep(_named(graph), interfaces, self.held, self.added, movable_values(graph))


def _kept(value: Value) -> Value:
    """A value as it is inside: gradients are not handed over; what replaces a buffer's content is kept to the end.

    Parameters, frozen or not, and buffers that are not written may be host-resident.
    """
    if value.leaves == _BACKWARD:
        return replace(value, leaves=None, role=Role.ACTIVATION if value.role is Role.GRADIENT else value.role)
    if value.persistent and value.role in (Role.PARAMETER, Role.BUFFER) and value.readable_through is None:
        return replace(value, movable=_may_move(value.geometry))
    return value if value.leaves is None else replace(value, held=True)


def _may_move(geometry: Geometry | None) -> bool:
    """Whether what persists may be host-resident.

    Tiny tensors are not: prefetched, they would take more of the small zone than was set aside. Counters go with the
    state that they belong to, so that updates can run on the host; few are prefetched at a time. What begins within a
    storage is not, either: its value would be all from the storage's beginning, and that is others'.
    """
    if geometry is None or geometry.offset:
        return False
    return geometry.extent_B >= SMALL_B or geometry.extent_B <= _COUNTER_B


def _last_reads(graph: Graph) -> dict[int, int]:
    """Per value the last place in the program at which it is read, whichever implementations are chosen.

    What is in no program takes the place of what it stands for: of those whose results it makes, or of its group.
    """
    place = {r: i for i, r in enumerate(graph.program)}
    group_of = {r: g for g in graph.groups for o in g.options for r in o.recipes}
    makers = {v: place[r] for r in graph.program for v in graph.recipes[r].outputs}
    last: dict[int, int] = {}
    for recipe in graph.recipes:
        if recipe.id in place:
            here = place[recipe.id]
        else:
            stands = [makers[v] for v in recipe.outputs if v in makers]
            group = group_of.get(recipe.id)
            stands += [] if group is None else [place[r] for r in group.options[0].recipes if r in place]
            here = max(stands, default=-1)
        for value in recipe.read_values:
            last[value] = max(last.get(value, -1), here)
    return last


def _named(graph: Graph) -> Graph:
    """Names the graph by the captured one and what was added."""
    digest = hashlib.sha256(graph.key.encode())
    for recipe in graph.recipes:
        digest.update(msgspec.json.encode((recipe.op, recipe.outputs, recipe.reads, recipe.args, recipe.kwargs)))
    digest.update(msgspec.json.encode((graph.program, [v.leaves for v in graph.values])))
    return replace(graph, key=digest.hexdigest()[:16])
