"""A Dynamo backend that has Inductor compile a graph, and lets an executor of ours run its kernels."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lowtide.capture.aot import primal_name
from lowtide.capture.breaks import break_after, break_instead_of
from lowtide.capture.captured import Captured, Executor
from lowtide.capture.captured_call import RoundTrip
from lowtide.capture.joint import Joint, joint_from
from lowtide.capture.rewrite import snapshot_mutated_inputs
from lowtide.capture.slots import Slots, honest_modules, slots_of
from lowtide.compiled.joint import Halves, joint_of_kernels
from lowtide.compiled.program import Plain, Program, Seen, read_program
from lowtide.device.aot_tracing import boxed, forbid_donation, static_primals, tangent_positions
from lowtide.device.capture_errors import errors_left_to_eager
from lowtide.device.inductor import InductorCompilers, InductorProgram, compile_with_inductor
from lowtide.errors import UnsupportedOperator
from lowtide.ir.fidelity import COMPILED, Fidelity
from lowtide.ir.plan import GraphBreak

_LOG = logging.getLogger("lowtide")


@dataclass(frozen=True)
class CompileTimes:
    """Seconds that became of graphs before they could be planned.

    Arguments:
        inductor_s: of Inductor: its passes, its code generation, its C++ compiler or its cache.
        reading_s: of making recipes of what it wrote.
        graphs: how many.
    """

    inductor_s: float = 0.0
    reading_s: float = 0.0
    graphs: int = 0

    def __add__(self, other: CompileTimes) -> CompileTimes:
        return CompileTimes(
            self.inductor_s + other.inductor_s, self.reading_s + other.reading_s, self.graphs + other.graphs
        )


_SPARES = 8
_ESTABLISHED = (
    "every kernel is the one that Inductor compiled for the whole step, whatever the budget",
    "random numbers are drawn once, as seeds; recomputation reads them",
)
_SYMBOLIC = (
    "Inductor is asked to compile for sizes that vary, and its kernels are planned for fixed sizes: pass "
    "dynamic=False, which compiles each shape by itself."
)


def make_inductor_backend(
    executor_for: Callable[[Captured], Executor],
    left_out: Callable[[GraphBreak], None] | None = None,
    compiled: Callable[[CompileTimes], None] | None = None,
) -> Callable[..., Callable[..., Any]]:
    """A Dynamo backend `(gm, inputs) -> callable` whose graphs call Inductor's kernels.

    What is captured gives the bits of `torch.compile(model)`: Inductor's passes, its decompositions, its partition and
    its kernels are used as they are.

    Arguments:
        executor_for: called once per captured graph, while it is being compiled.
        left_out: is told of graphs that cannot be captured, which Dynamo runs in plain Python.
        compiled: is told what a graph took.
    """

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            return _Capture(gm, executor_for, compiled).run(inputs)
        except errors_left_to_eager() as error:
            if left_out is not None:
                left_out(break_instead_of(gm, error))
            raise

    return backend


class _Capture:
    """One graph on its way from Dynamo to an executor."""

    def __init__(
        self,
        gm: fx.GraphModule,
        executor_for: Callable[[Captured], Executor],
        compiled: Callable[[CompileTimes], None] | None,
    ) -> None:
        self.gm, self.executor_for, self.compiled = gm, executor_for, compiled
        self.names = {i: primal_name(p) for i, p in enumerate(gm.graph.find_nodes(op="placeholder"))}
        self.captured: Captured | None = None
        self.trip: RoundTrip | None = None

    def run(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_with_inductor(self.gm, inputs, self._compilers)

    def _compilers(self, inductor: InductorCompilers) -> dict[str, Any]:
        """What AOTAutograd calls."""

        def partition(
            joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any
        ) -> tuple[fx.GraphModule, fx.GraphModule]:
            statics = options.get("static_lifetime_input_indices") or ()
            traced = joint_from(joint, num_fwd_outputs, statics, self.names)
            _refuse_symbols(traced)
            primals = inputs[0] if isinstance(inputs, tuple) else inputs
            forward, backward = inductor.partition(joint, inputs, num_fwd_outputs=num_fwd_outputs, **options)
            halves = Halves.of(forward, backward)
            trivial = _handed_on(forward), _handed_on(backward)
            programs = inductor.training(
                forward, backward, primals, outputs=num_fwd_outputs, mutated=len(traced.mutated), statics=list(statics)
            )
            found = self._joint(traced, programs, trivial, halves)
            self.captured = self._captured(found, slots_of(found, _SPARES))
            self.trip = RoundTrip(self.captured, self.executor_for(self.captured))
            return honest_modules(found, self.captured.slots)

        def compile_forward(_module: fx.GraphModule, _inputs: object) -> Callable[..., Any]:
            forbid_donation()
            assert self.captured is not None
            assert self.trip is not None
            positions = tangent_positions()
            if positions is not None and len(positions) == len(self.captured.joint.tangents):
                self.captured.positions = tuple(positions)
            return boxed(self.trip.forward)

        def compile_backward(_module: fx.GraphModule, _inputs: object) -> Callable[..., Any]:
            assert self.trip is not None
            return boxed(self.trip.backward)

        def compile_inference(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            traced = joint_from(module, None, static_primals(), self.names)
            _refuse_symbols(traced)
            trivial = _handed_on(module)
            program = inductor.inference(module, inputs)
            found = self._joint(traced, (program, None), (trivial, None), None)
            return boxed(self.executor_for(self._captured(found, Slots((), (), ()))).forward)

        return {
            "partition_fn": partition,
            "fw_compiler": compile_forward,
            "bw_compiler": compile_backward,
            "inference_compiler": compile_inference,
        }

    def _joint(
        self,
        traced: Joint,
        programs: tuple[InductorProgram | None, InductorProgram | None],
        trivial: tuple[Program | None, Program | None],
        halves: Halves | None,
    ) -> Joint:
        start = time.perf_counter()
        forward, backward = (t if p is None else read_program(p) for p, t in zip(programs, trivial, strict=True))
        if forward is None or (halves is not None and backward is None):
            raise UnsupportedOperator(
                'Inductor returned no program for a graph that computes something: use compiler="eager", which plans '
                "this model's operators"
            )
        found = joint_of_kernels(traced, forward, backward, halves)
        snapshot_mutated_inputs(found)
        compile_s = sum(p.compile_s for p in programs if p is not None)
        times = CompileTimes(compile_s, time.perf_counter() - start, 1)
        _LOG.info("Inductor took %.1f s for a graph, reading its kernels %.1f s", times.inductor_s, times.reading_s)
        if self.compiled is not None:
            self.compiled(times)
        return found

    def _captured(self, joint: Joint, slots: Slots) -> Captured:
        fidelity = Fidelity(_ESTABLISHED, (), COMPILED)
        return Captured(joint, slots, break_after(self.gm), fidelity=fidelity)


def _refuse_symbols(traced: Joint) -> None:
    """Refuses a graph for sizes that vary.

    Raises:
        UnsupportedOperator: then.
    """
    for primal in traced.primals:
        value = primal.meta.get("val")
        sizes = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
        if any(isinstance(n, torch.SymInt | torch.SymFloat | torch.SymBool) for n in sizes):
            raise UnsupportedOperator(_SYMBOLIC)


def _handed_on(module: fx.GraphModule) -> Program | None:
    """What a graph does that only hands on what it is given; None where it computes something."""
    inputs = tuple(p.name for p in module.graph.find_nodes(op="placeholder"))
    results = module.graph.output_node().args[0]
    assert isinstance(results, tuple | list)
    returns: list[Any] = []
    for result in results:
        if isinstance(result, fx.Node) and result.op != "placeholder":
            return None
        returns.append(Seen(result.name) if isinstance(result, fx.Node) else Plain(result))
    return Program(inputs, {}, {}, (), tuple(returns))
