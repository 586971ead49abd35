"""A Dynamo backend that captures joint graphs and lets an executor of ours run in their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from lowtide.capture.autocast_casts import share_casts
from lowtide.capture.breaks import break_after, break_instead_of
from lowtide.capture.captured import Captured, Executor
from lowtide.capture.captured_call import AbstractSteps, Capture, CapturedCall, RoundTrip
from lowtide.capture.contributions import divide_gradients, edges_of
from lowtide.capture.fidelity import Read, fidelity_of
from lowtide.capture.joint import Joint, joint_from
from lowtide.capture.origin import module_name, primal_path
from lowtide.capture.regions import expand_regions
from lowtide.capture.rewrite import (
    drop_everything_as_eager,
    dropout_as_eager,
    rewrite,
    share_what_is_handed_out,
)
from lowtide.capture.rrelu import order_inputs_of_rrelu
from lowtide.capture.shared_outputs import divide_shared_outputs, shared_outputs
from lowtide.capture.slots import Slots, honest_modules, slots_of
from lowtide.device.ambient import Ambient
from lowtide.device.aot_tracing import (
    aot_autograd,
    backward_traced_as_eager,
    boxed,
    forbid_donation,
    static_primals,
    tangent_positions,
    unused_draws_kept,
)
from lowtide.device.arrivals import Arrivals, GradientLayout
from lowtide.device.autocast_cache import autocast_cache_noted
from lowtide.device.backward_traces import backward_traces, take_layouts
from lowtide.device.capture_errors import errors_left_to_eager
from lowtide.device.contributions import use_by_use
from lowtide.device.gradient_layouts import take_gradients_as_they_come
from lowtide.device.layouts import real_layouts
from lowtide.device.python_kernels import composites_traced_as_eager
from lowtide.device.strides import hint_of
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import GraphBreak
from lowtide.ops.catalogue import enlarge
from lowtide.progress import tell

_SPARE = 8  # slots more than implementations need at the sizes of the first call


@dataclass(eq=False)
class _Uncopied:
    """Carries the round trip through AOTAutograd, which deep-copies the backward's module with its meta."""

    trip: RoundTrip

    def __deepcopy__(self, memo: dict[int, Any]) -> _Uncopied:
        return self


def make_backend(
    executor_for: Callable[[Captured], Executor],
    several: Callable[[], bool] | None = None,
    steps: AbstractSteps | None = None,
    left_out: Callable[[GraphBreak], None] | None = None,
) -> Callable[..., Callable[..., Any]]:
    """A Dynamo backend `(gm, inputs) -> callable`.

    Arguments:
        executor_for: called once per captured graph, while it is being compiled.
        several: tells whether the model is known to have several graphs; None where all uses of every input are in the
            one graph, the optimizer's too.
        steps: what the calls of captured graphs tell, and are told by, whoever runs whole steps of them; None where
            the backward is not autograd's to call, and is given what it was captured for.
        left_out: is told of graphs that cannot be captured, which Dynamo runs in plain Python.
    """

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        tell(f"capturing a graph of {len(gm.graph.nodes)} calls and its backward")
        expand_regions(gm)
        order_inputs_of_rrelu(gm)
        divide_shared_outputs(gm)
        program, read = object(), Read.now()
        try:
            first = _capture(gm, inputs, executor_for, several, program, read)
        except errors_left_to_eager() as error:
            if left_out is not None:
                left_out(break_instead_of(gm, error))
            raise
        if not isinstance(first, Capture):
            return first
        if steps is None:
            return first.call
        ambient, statics = Ambient.now(gm), first.trip.captured.joint.statics

        def capture(arrivals: Arrivals) -> Capture:
            with ambient.restored() as examples:
                found = _capture(gm, examples, executor_for, several, program, read, arrivals, statics)
            assert isinstance(found, Capture)
            return found

        return CapturedCall(first, capture, steps)

    return backend


def _capture(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    executor_for: Callable[[Captured], Executor],
    several: Callable[[], bool] | None,
    program: object,
    read: Read,
    arrivals: Arrivals | None = None,
    statics: Collection[int] = (),
) -> Capture | Callable[..., Any]:
    """Captures a graph, for gradients that arrive as given.

    Arguments:
        program: the same object for every capture of the graph.
        read: what was found when its code was read.
        arrivals: which; None for the most likely one.
        statics: arguments that are known to be parameters and buffers.

    Returns: the capture; what runs in its place, where it has no backward.
    """
    names = {i: primal_name(p) for i, p in enumerate(gm.graph.find_nodes(op="placeholder"))}
    captures: list[Captured] = []
    trips: list[RoundTrip] = []

    def partition(
        joint_gm: fx.GraphModule,
        joint_inputs: object,  # noqa: ARG001
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: Sequence[int] | None = None,
        **_: object,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        take_layouts(joint_gm)
        joint = joint_from(joint_gm, num_fwd_outputs, statics or static_lifetime_input_indices or (), names)
        ended = break_after(gm)
        edges = edges_of(joint, traces.edges)
        kept, unshared = share_casts(joint, gm, casts, edges)
        if several is not None and len(joint.primals) == len(gm.graph.find_nodes(op="placeholder")):
            joint = divide_gradients(joint, edges, several=ended is not None or several())
        shared = shared_outputs(joint)
        joint = rewrite(joint)
        fidelity = fidelity_of(read, traced).doubted(unshared)
        captured = Captured(
            joint, slots_of(joint), ended, program=program, fidelity=fidelity, kept_casts=kept, shared_results=shared
        )
        captured.slots = replace(captured.slots, spares=_spares(captured))
        captures.append(captured)
        forward, backward = honest_modules(joint, captured.slots)
        trips.append(RoundTrip(captured, executor_for(captured)))
        forward.meta["lowtide"] = backward.meta["lowtide"] = _Uncopied(trips[-1])
        return forward, backward

    def compile_forward(module: fx.GraphModule, _: object) -> Callable[..., Any]:
        forbid_donation()
        captured = captures[-1]
        positions = tangent_positions()
        if positions is not None and len(positions) == len(captured.joint.tangents):
            captured.positions = tuple(positions)
        if take_gradients_as_they_come():
            captured.arrivals = _arrivals(captured.joint, traces.begun_from)
        return boxed(module.meta["lowtide"].trip.forward)

    def compile_backward(module: fx.GraphModule, _: object) -> Callable[..., Any]:
        return boxed(module.meta["lowtide"].trip.backward)

    def compile_inference(module: fx.GraphModule, _: object) -> Callable[..., Any]:
        joint = joint_from(module, None, static_primals(), names)
        share_what_is_handed_out(joint)
        drop_everything_as_eager(joint)
        dropout_as_eager(joint)
        captured = Captured(joint, Slots((), (), ()), break_after(gm), fidelity=fidelity_of(read, traced))
        return boxed(executor_for(captured).forward)

    compiled = aot_autograd(
        fw_compiler=compile_forward,
        bw_compiler=compile_backward,
        inference_compiler=compile_inference,
        partition_fn=partition,
        decompositions=None,
    )
    with (
        backward_traced_as_eager(),
        unused_draws_kept(),
        composites_traced_as_eager() as traced,
        real_layouts(),
        autocast_cache_noted(gm) as casts,
        backward_traces(arrivals, scalars_alone=break_after(gm) is None) as traces,
    ):
        call = compiled(gm, inputs)
    if not captures:
        return call  # type: ignore[no-any-return]
    (captured,) = captures
    uses = {i: len(further) + 1 for i, further in captured.joint.handed_over}
    return Capture(trips[0], use_by_use(call, uses) if uses else call)


def _arrivals(joint: Joint, begun_from: frozenset[int]) -> Arrivals:
    """How the gradients come for which a joint graph was traced."""
    found: list[GradientLayout | None] = []
    for number, tangent in enumerate(joint.tangents):
        value = tangent.meta["val"]
        shape, strides = ([hint_of(n) for n in numbers] for numbers in (value.shape, value.stride()))
        comes = number in begun_from and None not in shape
        found.append(GradientLayout.of(shape, strides) if comes else None)  # type: ignore[arg-type]
    return tuple(found)


def _spares(captured: Captured) -> int:
    """How many slots all implementations, of any level, may need on top of those of the program."""
    traced = captured.specialise(None)
    return len(traced.outside_arena(enlarge(traced.graph, Numerics.LOSSY))) + _SPARE


def primal_name(placeholder: fx.Node) -> str:
    """`transformer.wte.weight`, from the source that Dynamo recorded, or the placeholder's own name."""
    path = primal_path(placeholder)
    name = module_name(path) if path else ""
    return name or re.sub(r"^[lg]_(self_|model_)?|_$", "", placeholder.name.lower())
