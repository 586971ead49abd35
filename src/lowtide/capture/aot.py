"""A Dynamo backend that captures joint graphs and lets an executor of ours run in their place."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import fx

from lowtide.capture.breaks import break_after
from lowtide.capture.contributions import divide_gradients
from lowtide.capture.extract import Extraction
from lowtide.capture.fidelity import fidelity_of
from lowtide.capture.joint import Joint, joint_from
from lowtide.capture.origin import module_name, primal_path
from lowtide.capture.reach import Reach, reach_of
from lowtide.capture.regions import expand_regions
from lowtide.capture.rewrite import rewrite
from lowtide.capture.rrelu import order_inputs_of_rrelu
from lowtide.capture.slots import Slots, honest_modules, slots_of
from lowtide.capture.symbols import ShapeKey, Symbols, describe_shapes, shape_key
from lowtide.capture.whole_step import WholeStep
from lowtide.device.arrivals import watch
from lowtide.device.contributions import gradient_edges_counted, use_by_use
from lowtide.device.gradient_layouts import gradients_without_holes, take_gradients_as_they_come
from lowtide.device.layouts import real_layouts
from lowtide.device.python_kernels import composites_traced_as_eager
from lowtide.device.semiprivate import (
    aot_autograd,
    backward_traced_as_eager,
    forbid_donation,
    tangent_positions,
)
from lowtide.ir.fidelity import Fidelity
from lowtide.ir.graph import Graph, Role
from lowtide.ir.interface import crossing
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import GraphBreak
from lowtide.ops.catalogue import enlarge

_SPARE = 8  # slots more than implementations need at the sizes of the first call


class Executor(Protocol):
    """What runs in place of a captured graph. Argument lists are boxed: the callee empties them."""

    def forward(self, arguments: list[Any]) -> Sequence[Any]: ...

    def backward(self, arguments: list[Any]) -> Sequence[Any]: ...


@dataclass(eq=False)
class _Uncopied:
    """Carries the executor through AOTAutograd, which deep-copies the backward's module with its meta."""

    executor: Executor

    def __deepcopy__(self, memo: dict[int, Any]) -> _Uncopied:
        return self


@dataclass(eq=False)
class Captured:
    """One captured graph: how to specialise it, and how it exchanges values with its caller.

    Arguments:
        joint: the graph; nodes carry fake values with possibly symbolic sizes.
        slots: what passes from forward to backward; empty for inference.
        ended: the break at which the graph ended, if the model goes on in another.
        reach: which gradients depend on which; None where that is not known, or there is no backward.
        expected: shape and strides for which the backward was captured, of gradients that come as they lie.
        fidelity: what is known of how its results compare with those of the same code without lowtide.
    """

    joint: Joint
    slots: Slots
    ended: GraphBreak | None = None
    reach: Reach | None = None
    expected: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    fidelity: Fidelity = field(default_factory=Fidelity)

    def lay_out(self, arguments: list[Any], came: Sequence[bool] | None) -> None:
        """Lets the gradients that a backward is given lie as it was captured for.

        The zeros that autograd makes for an output that takes no part in the loss are seen otherwise; others are
        copied, each in place of the one that came.

        Arguments:
            arguments: of the backward.
            came: per gradient that autograd gives the captured function, whether there is one; None if nobody looked.
        """
        for tangent, (shape, stride) in self.expected.items():
            place = self.slots.token + 1 + tangent
            given = arguments[place]
            if not isinstance(given, torch.Tensor) or given.stride() == stride:
                continue
            is_zero = came is not None and self.reach is not None and not came[self.reach.positions[tangent]]
            with torch.no_grad():
                if is_zero and given.is_contiguous():
                    arguments[place] = given.as_strided(shape, stride)
                else:
                    laid_out = torch.empty_strided(shape, stride, dtype=given.dtype, device=given.device)
                    arguments[place] = laid_out.copy_(given)

    @property
    def must_look(self) -> bool:
        """Whether it matters to the backward which gradients autograd really has."""
        return bool(self.expected) or (self.reach is not None and self.reach.is_partial)

    @cached_property
    def _symbolic(self) -> tuple[int, ...]:
        return tuple(i for i, p in enumerate(self.joint.primals) if isinstance(p.meta.get("val"), torch.SymInt))

    @cached_property
    def unchanged(self) -> dict[int, int]:
        """Per result of the forward that replaces an argument's content, that argument."""
        position = {p: i for i, p in enumerate(self.joint.primals)}
        outputs = self.joint.forward_outputs
        return {i: position[p] for p, new in self.joint.mutated.items() for i, o in enumerate(outputs) if o is new}

    def key(self, arguments: Sequence[Any]) -> ShapeKey:
        """What distinguishes this call's shapes from others of the same graph."""
        return shape_key(self._symbolic, arguments)

    def specialise(self, arguments: Sequence[Any] | None) -> Specialised:
        """The graph for the sizes of one call; with None, for the sizes it was traced with."""
        symbols = Symbols(self.joint.primals, arguments)
        extraction = Extraction(self.joint, symbols)
        graph = extraction.run()
        shapes = describe_shapes(self.joint.primals, self.joint.names, symbols)
        return Specialised(self, extraction, symbols, graph, shapes)


@dataclass(eq=False)
class Specialised:
    """A captured graph with every size a number: the IR graph and the way back to the caller's arguments.

    Arguments:
        graph: before profiling.
        shapes: name and shape of each tensor that the caller gives.
        whole: the same as one segment with the optimizer's updates, where it runs so.
    """

    captured: Captured
    extraction: Extraction
    symbols: Symbols
    graph: Graph
    shapes: tuple[tuple[str, str], ...]
    whole: WholeStep | None = None

    @property
    def held(self) -> list[Any]:
        """Arguments without a text form, by the index that `Held` names."""
        return self.extraction.held if self.whole is None else self.whole.held

    def homeless(self, graph: Graph) -> list[int]:
        """Values of a graph with more implementations that some plan may hand to the backward, and without a slot."""
        value_of = self.extraction.value_of
        at_home = {value_of[n] for n in self.captured.slots.tensors if n in value_of}
        at_home |= {v for v, _ in self.extraction.constants}
        return [v for v in sorted(crossing(graph)) if v not in at_home and graph.values[v].role is not Role.GENERATOR]


def make_backend(
    executor_for: Callable[[Captured], Executor], several: Callable[[], bool] | None = None
) -> Callable[..., Callable[..., Any]]:
    """A Dynamo backend `(gm, inputs) -> callable`.

    Arguments:
        executor_for: called once per captured graph, while it is being compiled.
        several: tells whether the model is known to have several graphs; None where all uses of every input are in the
            one graph, the optimizer's too.
    """

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        expand_regions(gm)
        order_inputs_of_rrelu(gm)
        names = {i: _primal_name(p) for i, p in enumerate(gm.graph.find_nodes(op="placeholder"))}
        captures: list[Captured] = []

        def partition(
            joint_gm: fx.GraphModule,
            joint_inputs: object,  # noqa: ARG001
            *,
            num_fwd_outputs: int,
            static_lifetime_input_indices: Sequence[int] | None = None,
            **_: object,
        ) -> tuple[fx.GraphModule, fx.GraphModule]:
            joint = joint_from(joint_gm, num_fwd_outputs, static_lifetime_input_indices or (), names)
            ended = break_after(gm)
            if several is not None and len(joint.primals) == len(gm.graph.find_nodes(op="placeholder")):
                joint = divide_gradients(joint, traces, several=ended is not None or several())
            joint = rewrite(joint)
            captured = Captured(joint, slots_of(joint), ended, fidelity=fidelity_of(traced))
            captured.slots = replace(captured.slots, spares=_spares(captured))
            captures.append(captured)
            forward, backward = honest_modules(joint, captured.slots)
            forward.meta["lowtide"] = backward.meta["lowtide"] = _Uncopied(executor_for(captured))
            return forward, backward

        def compile_forward(module: fx.GraphModule, _: object) -> Callable[..., Any]:
            forbid_donation()
            captures[-1].reach = reach_of(captures[-1].joint, tangent_positions())
            captures[-1].expected = take_gradients_as_they_come()
            return _boxed(module.meta["lowtide"].executor.forward)

        def compile_backward(module: fx.GraphModule, _: object) -> Callable[..., Any]:
            return _boxed(module.meta["lowtide"].executor.backward)

        def compile_inference(module: fx.GraphModule, _: object) -> Callable[..., Any]:
            joint = joint_from(module, None, _static_primals(), names)
            captured = Captured(joint, Slots((), (), ()), break_after(gm), fidelity=fidelity_of(traced))
            return _boxed(executor_for(captured).forward)

        compiled = aot_autograd(
            fw_compiler=compile_forward,
            bw_compiler=compile_backward,
            inference_compiler=compile_inference,
            partition_fn=partition,
            decompositions=None,
        )
        with (
            backward_traced_as_eager(),
            composites_traced_as_eager() as traced,
            gradients_without_holes(),
            real_layouts(),
            gradient_edges_counted() as traces,
        ):
            call = compiled(gm, inputs)
        if any(c.must_look for c in captures):
            call = _watching(call)
        uses = {i: len(further) + 1 for c in captures for i, further in c.joint.shares}
        return use_by_use(call, uses) if uses else call

    return backend


def _spares(captured: Captured) -> int:
    """How many slots the implementations that there are, of any level, may need beside those of the program."""
    traced = captured.specialise(None)
    return len(traced.homeless(enlarge(traced.graph, Numerics.LOSSY))) + _SPARE


def _watching(call: Callable[..., Any]) -> Callable[..., Any]:
    """A captured graph's call, that looks which gradients its backward will really be given."""

    @functools.wraps(call)
    def watched(*arguments: Any) -> Any:
        results = call(*arguments)
        watch(results)
        return results

    return watched


def _boxed(function: Callable[[list[Any]], Sequence[Any]]) -> Callable[..., Any]:
    def call(arguments: list[Any]) -> Sequence[Any]:
        return function(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _static_primals() -> list[int]:
    """Indices of the primals that are parameters or buffers, where AOTAutograd does not tell."""
    context = torch._guards.TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    return list(getattr(metadata, "static_input_indices", None) or [])


def _primal_name(placeholder: fx.Node) -> str:
    """`transformer.wte.weight`, from the source that Dynamo recorded, or the placeholder's own name."""
    path = primal_path(placeholder)
    name = module_name(path) if path else ""
    return name or re.sub(r"^[lg]_(self_|model_)?|_$", "", placeholder.name.lower())
