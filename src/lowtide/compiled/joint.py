"""Inductor's programs for a forward and a backward -> one joint graph whose nodes call their kernels.

Every name of a program stands for a content: where calls write parts of one buffer, each makes a new version of it
from the one before. So nodes are pure, and the graph is like one that AOTAutograd traces: what is captured of it, how
it is planned and run, does not depend on who made it.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from lowtide.capture.joint import Joint
from lowtide.compiled.program import Argument, KernelCall, Plain, Program, Seen, Several, is_operator
from lowtide.device.compiled_kernels import (
    Buffer,
    CompiledKernel,
    Constant,
    CurrentStream,
    Given,
    Launch,
    Listed,
    Made,
    Operand,
    Window,
    known_kernel,
)
from lowtide.device.fake_tensors import detect_fake_mode
from lowtide.device.operators import Overload, overwrites
from lowtide.errors import UnsupportedOperator

_DRAWS = torch.ops.aten.randint.low_out
_VIEW = torch.ops.aten.as_strided.default
_PURE = frozenset({"mkldnn", "mkl", "quantized", "inductor", "onednn"})
"""Libraries of torch's whose operators depend on their arguments alone; those of others run once."""


@dataclass(frozen=True)
class Content:
    """What a name stands for: a node's tensor, through a window."""

    node: fx.Node
    window: Window | None = None

    def seen(self, window: Window | None) -> Content:
        """The same through a further window."""
        return self if window is None else Content(self.node, window.behind(self.window))


@dataclass(frozen=True, eq=False)
class Waiting:
    """A call that only begins a buffer, and runs together with the one that goes on with it.

    Arguments:
        contents: what its arguments stood for where the program has it.
    """

    call: KernelCall
    contents: dict[str, Content]


@dataclass(eq=False)
class KernelGraph:
    """A graph under construction.

    Arguments:
        module: has the tensors that programs hold; gets the graph.
        fake: what makes fake tensors.
    """

    module: fx.GraphModule
    fake: Any
    graph: fx.Graph = field(default_factory=fx.Graph)
    _views: dict[Content, fx.Node] = field(default_factory=dict)
    _constants: dict[int, fx.Node] = field(default_factory=dict)

    def placeholder(self, like: fx.Node) -> fx.Node:
        """An argument of the graph, as another graph has it."""
        node = self.graph.placeholder(like.name)
        node.meta = dict(like.meta)
        return node

    def add(self, program: Program, given: Sequence[Content]) -> list[Any]:
        """Adds what a program does; returns what it returns: contents, None and numbers.

        Arguments:
            given: what its inputs stand for.
        """
        contents = dict(zip(program.inputs, given, strict=True))
        contents.update({name: self._constant(tensor) for name, tensor in program.constants.items()})
        run = _Run(self, program, contents)
        for index in range(len(program.calls)):
            run.step(index)
        return [run.returned(argument) for argument in program.returns]

    def node_of(self, found: Any) -> Any:
        """A content as a node: the tensor's own, or a view of it; what is no content as it is."""
        if not isinstance(found, Content) or found.window is None:
            return found.node if isinstance(found, Content) else found
        if found not in self._views:
            start = _offset_of(found.node)
            window = found.window
            arguments = (found.node, list(window.size), list(window.stride), start + window.offset)
            node = self.graph.call_function(_VIEW, arguments)
            with self.fake:
                node.meta["val"] = _VIEW(found.node.meta["val"], *arguments[1:])
            self._views[found] = node
        return self._views[found]

    def _constant(self, tensor: torch.Tensor) -> Content:
        if id(tensor) not in self._constants:
            name = f"_lowtide_constant_{len(self._constants)}"
            self.module.register_buffer(name, tensor, persistent=False)
            node = self.graph.get_attr(name)
            with self.fake:
                node.meta["val"] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            self._constants[id(tensor)] = node
        return Content(self._constants[id(tensor)])

    def call(
        self, target: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any], value: Any
    ) -> fx.Node:
        """One call of the graph, with the fake tensors that it returns."""
        node = self.graph.call_function(target, tuple(arguments), keywords)
        node.meta["val"] = value
        return node

    def pick(self, node: fx.Node, path: Sequence[int]) -> fx.Node:
        """The node of a part of a result."""
        for index in path:
            value = node.meta["val"][index]
            node = self.graph.call_function(operator.getitem, (node, index))
            node.meta["val"] = value
        return node

    def new(self, buffer: Buffer) -> torch.Tensor:
        """A fake tensor that lies as a buffer."""
        with self.fake:
            return torch.empty_strided(buffer.size, buffer.stride, dtype=buffer.dtype, device=buffer.device)


def _offset_of(node: fx.Node) -> int:
    return int(node.meta["val"].storage_offset())


@dataclass(eq=False)
class _Run:
    """A program on its way into a graph."""

    into: KernelGraph
    program: Program
    contents: dict[str, Content]
    waiting: dict[str, list[Waiting]] = field(default_factory=dict)

    def returned(self, argument: Argument) -> Any:
        if isinstance(argument, Seen):
            return self._content(argument)
        return argument.value if isinstance(argument, Plain) else None

    def _content(self, seen: Seen, contents: dict[str, Content] | None = None) -> Content:
        found = (self.contents if contents is None else contents).get(seen.name)
        if found is None:
            raise UnsupportedOperator(
                f'a kernel of Inductor\'s reads {seen.name}, which nothing has written: use compiler="eager"'
            )
        return found.seen(seen.window)

    def step(self, index: int) -> None:
        """Adds one call."""
        call = self.program.calls[index]
        if not call.writes:
            self._returning(call)
        elif call.kernel.call is _DRAWS:
            self._draw(call)
        elif self._goes_on_later(call, index):
            (name,) = call.writes
            contents = {n: self.contents[n] for n in call.reads if n in self.contents}
            self.waiting.setdefault(name, []).append(Waiting(call, contents))
        else:
            self._writing(call)

    def _goes_on_later(self, call: KernelCall, index: int) -> bool:
        """Whether a call only begins a buffer that nobody reads before another call writes to it as well."""
        if len(call.writes) != 1 or (name := call.writes[0]) in self.contents or name in call.reads:
            return False
        for later in self.program.calls[index + 1 :]:
            if name in later.writes:
                return True
            if name in later.reads:
                return False
        return False

    def _draw(self, call: KernelCall) -> None:
        """Random numbers are drawn by the operator that returns them: it is known to move the generator."""
        (name,) = call.writes
        buffer = self.program.buffers[name]
        low, high, size = (a.value if isinstance(a, Plain) else None for a in call.arguments[:3])
        target: Any = torch.ops.aten.randint.low
        keywords = {"dtype": buffer.dtype, "device": torch.device(buffer.device)}
        node = self.into.call(target, (low, high, size), keywords, self.into.new(buffer))
        self._known(node, call)
        self.contents[name] = Content(node)

    # calls that make their own results ------------------------------------------------------------------------

    def _returning(self, call: KernelCall) -> None:
        if call.result is None:
            return  # it makes nothing that anybody sees
        target: Any = call.kernel.call
        if is_operator(call.kernel) and _namespace(target) not in _PURE:
            if overwrites(target):
                raise UnsupportedOperator(
                    f'{call.kernel.name} overwrites what it is given, in Inductor\'s program: use compiler="eager"'
                )
            arguments = [self._passed(a) for a in call.arguments]
            keywords = {name: self._passed(a) for name, a in call.keywords}
            node = self.into.call(target, arguments, keywords, self._fake_result(call))
        else:
            given, launch = self._launch(call, {})
            kernel = known_kernel(CompiledKernel((launch,), (), len(given)))
            value = self._fake_result(call)
            node = self.into.call(kernel, [g.node for g in given], {}, value)
        self._known(node, call)
        self.contents[call.result] = Content(node)
        for name, path in call.picks.items():
            self.contents[name] = Content(self.into.pick(node, path))

    def _passed(self, argument: Argument) -> Any:
        match argument:
            case Seen():
                return self.into.node_of(self._content(argument))
            case Several(items=items):
                return [self._passed(i) for i in items]
            case Plain(value=value):
                return value

    def _fake_result(self, call: KernelCall) -> Any:
        """The fake tensors that a call returns."""

        def fake(argument: Argument) -> Any:
            match argument:
                case Seen():
                    found = self._content(argument)
                    value = found.node.meta["val"]
                    if (window := found.window) is None:
                        return value
                    return value.as_strided(window.size, window.stride, window.offset + value.storage_offset())
                case Several(items=items):
                    return [fake(i) for i in items]
                case Plain(value=value):
                    return value

        with self.into.fake:
            result = call.kernel.call(*map(fake, call.arguments), **{k: fake(a) for k, a in call.keywords})
            return _laid_out(result, call)

    # calls that write into buffers ----------------------------------------------------------------------------

    def _writing(self, call: KernelCall) -> None:
        """A kernel with the buffers that it writes, and calls before it that began them."""
        before = [w for name in call.writes for w in self.waiting.pop(name, ())]
        given: list[Content] = []
        made: dict[str, int] = {}
        buffers: list[Buffer] = []
        for name in call.writes:
            buffer = self.program.buffers.get(name)
            known = self.contents.get(name)
            if buffer is None and known is not None:
                buffer = _like(known)
            if buffer is None:
                raise UnsupportedOperator(
                    f'{call.kernel.name} writes into {name}, whose size is not known: use compiler="eager"'
                )
            if known is not None:
                buffer = dataclasses.replace(buffer, filled_from=_place(given, Content(known.node)))
            made[name] = len(buffers)
            buffers.append(buffer)
        launches = [self._launch(w.call, made, given, w.contents)[1] for w in before]
        launches.append(self._launch(call, made, given)[1])
        over = self._over(call, given, made, buffers) if not before else ()
        kernel = known_kernel(CompiledKernel(tuple(launches), tuple(buffers), len(given), over))
        values = [self.into.new(b) for b in buffers]
        node = self.into.call(kernel, [g.node for g in given], {}, values[0] if len(values) == 1 else tuple(values))
        self._known(node, *(w.call for w in before), call)
        for name, index in made.items():
            self.contents[name] = Content(node if len(values) == 1 else self.into.pick(node, (index,)))

    def _over(
        self, call: KernelCall, given: list[Content], made: dict[str, int], buffers: list[Buffer]
    ) -> tuple[tuple[int, int], ...]:
        """What the buffers of a call may be written over: what has their first content, or what Inductor knows of."""
        found = {}
        for name, index in made.items():
            first = buffers[index].filled_from
            if first is not None:
                found[first, index] = all(self.contents[n].node is not given[first].node for n in call.reads)
                continue
            for read in dict.fromkeys(call.reads):
                content = self.contents[read]
                if (name, read) in self.program.in_place and (content.window is None or content.window.offset == 0):
                    place = given.index(Content(content.node))
                    alone = [n for n in call.reads if self.contents[n].node is content.node] == [read]
                    found[place, index] = alone and content.node.meta["val"].dtype == buffers[index].dtype
        return tuple(pair for pair, may in found.items() if may)

    def _launch(
        self,
        call: KernelCall,
        made: dict[str, int],
        given: list[Content] | None = None,
        contents: dict[str, Content] | None = None,
    ) -> tuple[list[Content], Launch]:
        """A call in terms of what it is given and of its own buffers.

        Arguments:
            given: contents that are given so far; is added to.
            contents: what its arguments stand for; None for what they stand for now.
        """
        places = [] if given is None else given

        def operand(argument: Argument) -> Operand:
            match argument:
                case Seen(name=name, window=window) if name in made:
                    return Made(made[name], window)
                case Seen():
                    found = self._content(argument, contents)
                    return Given(_place(places, Content(found.node)), found.window)
                case Several(items=items):
                    return Listed(tuple(map(operand, items)))
                case Plain(value=CurrentStream() as stream):
                    return stream
                case Plain(value=value):
                    return Constant(value)

        operands = tuple(map(operand, call.arguments))
        keywords = tuple((name, operand(a)) for name, a in call.keywords)
        return places, Launch(call.kernel, operands, keywords)

    def _known(self, node: fx.Node, *calls: KernelCall) -> None:
        node.meta["lowtide_traces"] = tuple(dict.fromkeys(t for call in calls for t in call.traces))
        if node.meta["lowtide_traces"]:
            node.meta["stack_trace"] = node.meta["lowtide_traces"][-1]


def _place(given: list[Content], content: Content) -> int:
    """The place of a tensor among those that are given; it gets one."""
    if content not in given:
        given.append(content)
    return given.index(content)


def _like(content: Content) -> Buffer:
    value = content.node.meta["val"]
    return Buffer(tuple(value.shape), tuple(value.stride()), value.dtype, str(value.device))


def _namespace(op: Overload) -> str:
    return str(op.namespace)


def _laid_out(result: Any, call: KernelCall) -> Any:
    """A fake result as the program has checked that it lies in memory."""

    def visit(item: Any, path: tuple[int, ...]) -> Any:
        if isinstance(item, tuple | list):
            return type(item)(visit(part, (*path, i)) for i, part in enumerate(item))
        name = call.result if path == () else next((n for n, p in call.picks.items() if p == path), None)
        layout = call.layouts.get(name or "")
        if layout is None or not isinstance(item, torch.Tensor):
            return item
        return torch.empty_strided(*layout, dtype=item.dtype, device=item.device)

    return visit(result, ())


@dataclass(frozen=True)
class Halves:
    """Inductor's partition of a joint graph, by names, before it was compiled.

    Arguments:
        outputs: per result of the forward, the name of its node; None where it is no node.
        given: names of what the backward is given.
    """

    outputs: tuple[str | None, ...]
    given: tuple[str, ...]

    @classmethod
    def of(cls, forward: fx.GraphModule, backward: fx.GraphModule) -> Halves:
        """Of a partition."""
        results = forward.graph.output_node().args[0]
        assert isinstance(results, tuple | list)
        outputs = tuple(o.name if isinstance(o, fx.Node) else None for o in results)
        return cls(outputs, tuple(p.name for p in backward.graph.find_nodes(op="placeholder")))


def joint_of_kernels(traced: Joint, forward: Program, backward: Program | None, halves: Halves | None) -> Joint:
    """The joint graph that calls Inductor's kernels.

    Arguments:
        traced: the graph as AOTAutograd traced it: what is given, and what is wanted.
        forward, backward: what Inductor made of it; no backward for inference.
        halves: how the two belong together; None for inference.

    Raises:
        UnsupportedOperator: if they do not.
    """
    examples = [p.meta["val"] for p in traced.primals if isinstance(p.meta.get("val"), torch.Tensor)]
    built = KernelGraph(fx.GraphModule(torch.nn.Module(), fx.Graph()), detect_fake_mode(examples))
    primals = [built.placeholder(p) for p in traced.primals]
    tangents = [built.placeholder(t) for t in traced.tangents]
    known = {p.name: Content(p) for p in (*primals, *tangents)}
    if len(forward.inputs) != len(primals):
        raise UnsupportedOperator(
            f"Inductor's forward takes {len(forward.inputs)} arguments, and the graph has {len(primals)}: {_STRANGE}"
        )
    results = built.add(forward, [Content(p) for p in primals])
    gradients: list[Any] = []
    if backward is not None and halves is not None:
        saved = dict(zip(halves.outputs, results, strict=True))
        given = [found for n in halves.given if isinstance(found := saved.get(n, known.get(n)), Content)]
        if len(given) != len(halves.given):
            raise UnsupportedOperator(f"Inductor's backward is given what its forward does not save: {_STRANGE}")
        gradients = built.add(backward, given)
    outputs = [built.node_of(r) for r in results[: len(traced.forward_outputs)]]
    last = [built.node_of(g) for g in gradients]
    built.graph.output((*outputs, *last))
    built.module.graph = built.graph
    places = {p: i for i, p in enumerate(traced.primals)}
    mutated = {
        primals[places[p]]: outputs[next(i for i, o in enumerate(traced.forward_outputs) if o is new)]
        for p, new in traced.mutated.items()
    }
    return Joint(built.module, primals, tangents, outputs, last, mutated, traced.statics, traced.names)


_STRANGE = 'use compiler="eager", which plans this model\'s operators'
