"""Joint graph + concrete sizes -> `Graph`: values, recipes, program.

Views, `getitem`s, symbolic numbers and checks fold away: views become steps on the edges that read through them,
numbers become constants. What remains is one recipe per operator that touches bytes, plus one replay per random one.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import fx

from lowtide.capture.joint import (
    Joint,
    ancestors,
    is_assertion,
    is_getitem,
    is_number,
    is_opaque,
    is_random,
    is_tensor,
    picked_index,
    viewed,
)
from lowtide.capture.order import program_order
from lowtide.capture.origin import origin_of
from lowtide.capture.symbols import Symbols
from lowtide.device.compiled_kernels import kernel_of
from lowtide.device.engine_passes import gradients_are_given_away
from lowtide.device.operators import higher_order_name, overload_of
from lowtide.errors import UnsupportedOperator
from lowtide.ir.call import Arg, Const, Held, Items, Read, Ref, View
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, Graph, MiniTrace, Recipe, Role, Segment, Value

GENERATOR_STATE_B = {"cpu": 5056, "cuda": 16}
_UNCHANGED = ("aten.alias.default", "aten.detach.default")
"""Views of all of a tensor as it is, which autograd leaves behind: an operator that reads one reads the tensor."""


class Extraction:
    """The graph under construction, and which node became which value.

    After `run()`, `graph` is complete, `value_of` maps every base node to its value's id and `held` lists the
    arguments that have no text form, by the index that `Held` names. The tensors of constants are held as well:
    `constants` pairs each such value with its index there.
    """

    def __init__(self, joint: Joint, symbols: Symbols) -> None:
        self.joint = joint
        self.symbols = symbols
        self.values: list[Value] = []
        self.recipes: list[Recipe] = []
        self.program: list[int] = []
        self.value_of: dict[fx.Node, int] = {}
        self.held: list[Any] = []
        self.constants: list[tuple[int, int]] = []
        self.state_of: dict[int, int] = {}  # recipe -> the generator state it saves
        self._late = joint.late()
        self._views: dict[fx.Node, tuple[fx.Node, tuple[View, ...]]] = {}

    def run(self) -> Graph:
        """Extracts everything. O(nodes + arguments)."""
        for index, node in enumerate(self.joint.primals):
            if is_tensor(node):
                self._primal(index, node)
        for node in self.joint.tangents:
            if node.users:  # else it does not come
                self._value(node, Role.TANGENT, arrives=1)
        for node, segment in program_order(self.joint, self._late):
            if node.op == "get_attr":
                self._constant(node)
            elif is_tensor(node) and (source := viewed(node)) is not None:
                self._views[node] = (source, self._view_step(node, source))
            elif not (is_getitem(node) or is_number(node) or is_assertion(node)):
                self._call(node, segment)
        self._leave()
        self._replays()
        names = ("forward", "backward") if self.joint.trains else ("inference",)
        graph = Graph(
            values=tuple(self.values),
            recipes=tuple(self.recipes),
            program=tuple(self.program),
            segments=tuple(Segment(n) for n in names),
        )
        return _with_key(graph)

    # values ---------------------------------------------------------------------------------------------------

    def _value(self, node: fx.Node, role: Role, **facts: Any) -> int:
        geometry = self.symbols.geometry(node.meta["val"])
        value = Value(
            id=len(self.values), name=node.name, size_B=geometry.extent_B, role=role, geometry=geometry, **facts
        )
        self.values.append(value)
        self.value_of[node] = value.id
        return value.id

    def _primal(self, index: int, node: fx.Node) -> None:
        role = Role.INPUT
        if index in self.joint.statics:
            role = Role.PARAMETER if node.meta["val"].requires_grad else Role.BUFFER
        limit = 0 if node in self.joint.mutated and self.joint.trains else None
        self._value(node, role, arrives=0, persistent=True, readable_through=limit)
        if index in self.joint.names:
            self._change(self.value_of[node], name=self.joint.names[index])

    def _constant(self, node: fx.Node) -> None:
        if is_tensor(node):
            value = self._value(node, Role.CONSTANT, arrives=0, persistent=True)
            self.constants.append((value, self._hold(_attribute(self.joint.module, str(node.target))).index))

    def _change(self, value: int, **facts: Any) -> None:
        import msgspec

        self.values[value] = msgspec.structs.replace(self.values[value], **facts)

    def base(self, node: fx.Node) -> tuple[int, tuple[View, ...]]:
        """The value that a tensor node's bytes belong to, and the view steps from its tensor to the node's."""
        steps: tuple[View, ...] = ()
        while node not in self.value_of:
            if node in self._views:
                node, step = self._views[node]
                steps = step + steps
            elif is_getitem(node) and (source := node.args[0]) in self._views:  # one of several views
                base, step = self._views[source]  # type: ignore[index]
                *before, last = step
                pick = View(last.op, last.args, last.kwargs, pick=picked_index(node))
                node, steps = base, (*before, pick, *steps)
            else:
                raise UnsupportedOperator(f"cannot tell what {node.format_node()} reads")
        return self.value_of[node], steps

    # calls ----------------------------------------------------------------------------------------------------

    def _view_step(self, node: fx.Node, source: fx.Node) -> tuple[View, ...]:
        def convert(argument: Any) -> Arg:
            if argument is source:
                return Ref(0)
            if isinstance(argument, fx.Node) and is_tensor(argument):
                raise UnsupportedOperator(f"the view {node.format_node()} depends on a second tensor")
            return self._argument(argument, [])

        return (
            View(
                str(node.target),
                tuple(convert(a) for a in node.args),
                tuple((k, convert(v)) for k, v in node.kwargs.items()),
            ),
        )

    def _call(self, node: fx.Node, segment: int) -> None:
        if isinstance(node.meta.get("val"), tuple | list) and (source := viewed(node)) is not None:
            self._views[node] = (source, self._view_step(node, source))
            return
        reads: list[Read] = []
        args = tuple(self._argument(a, reads) for a in node.args)
        kwargs = tuple((k, self._argument(a, reads)) for k, a in node.kwargs.items())
        effect = Effect.OPAQUE if is_opaque(node) else Effect.RANDOM if is_random(node) else Effect.PURE
        outputs, paths = self._outputs(node)
        state = None
        if effect is Effect.RANDOM:
            device = self.values[outputs[0]].geometry.device  # type: ignore[union-attr]
            size_B = GENERATOR_STATE_B.get(device, 16)
            state = len(self.values)
            geometry = Geometry("uint8", (size_B,), (1,))
            self.values.append(Value(state, f"{node.name}_generator", size_B, Role.GENERATOR, geometry))
            outputs = [*outputs, state]
        sizes = [self.values[v].size_B for v in outputs if v != state]
        recipe = Recipe(
            id=len(self.recipes),
            op=_name(node),
            outputs=tuple(outputs),
            reads=tuple(reads),
            paths=tuple(paths),
            args=args,
            kwargs=kwargs,
            segment=segment,
            effect=effect,
            trace=MiniTrace(tuple(sizes), tuple(range(len(sizes)))),
            state=state,
            origin=origin_of(node),
        )
        self.recipes.append(recipe)
        self.program.append(recipe.id)

    def _outputs(self, node: fx.Node) -> tuple[list[int], list[tuple[int, ...]]]:
        """Values for everything the call returns, whether anybody picks it or not: it is allocated all the same."""
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            return [self._value(node, Role.ACTIVATION)], [()]
        found: dict[tuple[int, ...], int] = {}

        def visit(item: Any, path: tuple[int, ...]) -> None:
            if isinstance(item, torch.Tensor):
                geometry = self.symbols.geometry(item)
                found[path] = len(self.values)
                name = f"{node.name}_{'_'.join(map(str, path))}"
                self.values.append(Value(len(self.values), name, geometry.extent_B, Role.ACTIVATION, geometry))
            elif isinstance(item, tuple | list):
                for position, part in enumerate(item):
                    visit(part, (*path, position))

        visit(value, ())
        pending: list[tuple[fx.Node, tuple[int, ...]]]
        pending = [(user, (picked_index(user),)) for user in node.users if is_getitem(user)]
        while pending:
            picked, path = pending.pop()
            if path in found:
                self.value_of[picked] = found[path]
            else:
                pending += [(u, (*path, picked_index(u))) for u in picked.users if is_getitem(u)]
        return list(found.values()), list(found)

    def _argument(self, argument: Any, reads: list[Read]) -> Arg:
        if isinstance(argument, fx.Node):
            if argument.op == "get_attr" and not is_tensor(argument):
                return self._hold(_attribute(self.joint.module, str(argument.target)))
            value = argument.meta.get("val")
            if isinstance(value, torch.Tensor):
                base, steps = self.base(argument)
                seen = tuple(step for step in steps if step.op not in _UNCHANGED)
                reads.append(Read(base, seen, self.symbols.geometry(value)))
                return Ref(len(reads) - 1)
            if is_number(argument):
                return self._number(self.symbols.number(value))
            if isinstance(value, tuple | list):
                raise UnsupportedOperator(
                    f"{argument.format_node()} is passed on as a whole list; lowtide reads its parts"
                )
            return None if value is None else self._hold(value)
        if argument is None or isinstance(argument, bool | str):
            return argument
        if isinstance(argument, int | float | torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._number(self.symbols.number(argument))
        if isinstance(argument, complex):
            return Const("complex", repr(argument))
        for kind, text in (
            (torch.dtype, "dtype"),
            (torch.device, "device"),
            (torch.layout, "layout"),
            (torch.memory_format, "memory_format"),
        ):
            if isinstance(argument, kind):
                return Const(text, str(argument).removeprefix("torch."))  # type: ignore[arg-type]
        if isinstance(argument, tuple | list):
            return Items(tuple(self._argument(a, reads) for a in argument))
        return self._hold(argument)

    def _number(self, value: int | float | bool) -> Arg:
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return Const("float", repr(value))
        return value

    def _hold(self, thing: Any) -> Held:
        self.held.append(thing)
        return Held(len(self.held) - 1)

    # what leaves, what replays --------------------------------------------------------------------------------

    def _leave(self) -> None:
        updates = {id(o) for o in self.joint.mutated.values() if isinstance(o, fx.Node)}
        read_late = {r.value for i in self.program if self.recipes[i].segment > 0 for r in self.recipes[i].reads}
        for node in self.joint.forward_outputs:
            if not isinstance(node, fx.Node) or not is_tensor(node):
                continue
            value = self.values[self.base(node)[0]]
            if value.persistent:
                continue
            update = id(node) in updates and value.leaves is None
            held = not update or value.id in read_late
            self._change(
                value.id,
                leaves=0,
                held=held or (value.held and value.leaves == 0),
                role=Role.UPDATE if update else Role.OUTPUT,
            )
        for node in self.joint.backward_outputs:
            if isinstance(node, fx.Node) and is_tensor(node):
                for part in (node, *_parts(node)):
                    value = self.values[self.base(part)[0]]
                    if not value.persistent and value.leaves is None:
                        self._change(
                            value.id, leaves=1, role=Role.GRADIENT if value.role is Role.ACTIVATION else value.role
                        )
        if not gradients_are_given_away():
            for given in [self.value_of[t] for t in self.joint.tangents if t in self.value_of]:
                if self.values[given].leaves is None:
                    self._change(given, leaves=1, held=False)

    def _replays(self) -> None:
        """One more recipe per random one: the same call from the saved generator state, as often as wanted."""
        import msgspec

        for recipe in list(self.recipes):
            if recipe.effect is Effect.RANDOM:
                outputs = tuple(v for v in recipe.outputs if v != recipe.state)
                replay = msgspec.structs.replace(recipe, id=len(self.recipes), outputs=outputs, effect=Effect.PURE)
                self.recipes.append(replay)


def _parts(node: fx.Node) -> list[fx.Node]:
    """Tensors that a sparse one may be made of: its values are somebody's bytes, which live as long as it does."""
    found: list[fx.Node] = []
    pending = [node]
    while pending:
        made = pending.pop()
        if made.op == "call_function" and made.meta["val"].layout is not torch.strided:
            sources = [n for n in made.all_input_nodes if is_tensor(n) and n.op == "call_function"]
            found += sources
            pending += sources
    return found


def _attribute(module: torch.nn.Module, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _name(node: fx.Node) -> str:
    target = node.target
    if overload_of(target) is not None:
        return str(target)
    if (kernel := kernel_of(target)) is not None:
        return kernel.op
    if higher_order := higher_order_name(target):
        return f"higher_order.{higher_order}"
    return f"{getattr(target, '__module__', '?').lstrip('_')}.{getattr(target, '__name__', target)}"


def _with_key(graph: Graph) -> Graph:
    """Names the graph by its content, origins and names of people aside."""
    import msgspec

    digest = hashlib.sha256()
    for value in graph.values:
        digest.update(msgspec.json.encode((value.size_B, value.role, value.geometry, value.arrives, value.leaves)))
    for recipe in graph.recipes:
        digest.update(
            msgspec.json.encode((recipe.op, recipe.outputs, recipe.reads, recipe.args, recipe.kwargs, recipe.segment))
        )
    return msgspec.structs.replace(graph, key=digest.hexdigest()[:16])


def slot_nodes(joint: Joint) -> list[fx.Node]:
    """Every node whose tensor some plan might carry from the forward to the backward, in a fixed order.

    Bases only (views are rebuilt), and only what the backward can depend on.
    """
    late = joint.late()
    wanted = ancestors(n for n in late if n.op == "call_function") | ancestors(joint.backward_outputs)
    return [
        n
        for n in joint.module.graph.nodes
        if n in wanted
        and n not in late
        and n.op != "get_attr"
        and is_tensor(n)
        and viewed(n) is None
        and not _picked_view(n)
    ]


def _picked_view(node: fx.Node) -> bool:
    return is_getitem(node) and isinstance(node.args[0], fx.Node) and viewed_list(node.args[0])


def viewed_list(node: fx.Node) -> bool:
    """Whether a multi-output call returns views (`split`, `unbind`)."""
    return viewed(node) is not None
