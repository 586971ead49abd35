"""Inductor as it compiles a training step, with its programs handed over instead of run.

All of its passes, its partition of the joint graph and its code generation are its own. Three settings differ: every
buffer is one allocation that is written once, so that a kernel call is a pure function; the CPU backend ends a kernel
where it ends a loop nest, so that what it only puts into one kernel because nothing lies between can be planned apart
(what it fuses stays fused); and programs say from which lines each kernel comes. None of them changes a bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import fx

from lowtide.errors import CaptureError

IN_PLACE = "[lowtide in place]"
"""Marks a comment in a program: a kernel's result, and what it may be written over."""
_SETTINGS = {
    "allow_buffer_reuse": False,
    "inplace_buffers": False,
    "cpp_wrapper": False,
    "freezing": False,
    "memory_planning": False,
    "size_asserts": True,
    "trace.provenance_tracking_level": 2,
    # Part of the cache's key and of no other account: programs with one kernel per loop nest are others.
    "unsafe_marked_cacheable_functions": {"lowtide.one_kernel_per_loop_nest": "2"},
}


@dataclasses.dataclass(frozen=True, eq=False)
class InductorProgram:
    """One program that Inductor made: a Python function that allocates buffers and calls kernels.

    Arguments:
        source: text of its module.
        names: what that module defines.
        stack_traces: per kernel call, by the label that the source gives it, where its operators come from.
        compile_s: what compiling it took, or fetching it from Inductor's cache.
    """

    source: str
    names: dict[str, Any]
    stack_traces: dict[str, list[str]]
    compile_s: float


class InductorCompilers:
    """Inductor's partition and compilers for one graph, as AOTAutograd would call them.

    Arguments:
        options: what Inductor passed to AOTAutograd.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def partition(self, joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Inductor's passes on a joint graph, and its forward and backward."""
        forward, backward = self._options["partition_fn"](joint, inputs, **options)
        return forward, backward

    def training(
        self,
        forward: fx.GraphModule,
        backward: fx.GraphModule,
        inputs: Sequence[Any],
        *,
        outputs: int,
        mutated: int,
        statics: Sequence[int],
    ) -> tuple[InductorProgram | None, InductorProgram | None]:
        """Compiles both halves of a partition; None for one that only hands on what it is given.

        Arguments:
            inputs: fake tensors that the forward is given.
            outputs: results of the forward that are its caller's; what is saved for the backward follows.
            mutated: how many of them, the first ones, are new contents of inputs.
            statics: inputs that are parameters or buffers.
        """
        known = types.SimpleNamespace(
            num_mutated_inp_runtime_indices=mutated, static_input_indices=list(statics), bw_donated_idxs=[]
        )
        with _told(known), torch._guards.TracingContext.report_output_strides() as strides:
            compiled = self._compiled("fw_compiler", forward, list(inputs))
        with _told(known):
            given = _given_to_backward(backward, None if strides is None else strides[outputs:])
            return compiled, self._compiled("bw_compiler", backward, given)

    def inference(self, module: fx.GraphModule, inputs: Sequence[Any]) -> InductorProgram | None:
        """Compiles a graph without a backward."""
        return self._compiled("inference_compiler", module, list(inputs))

    def _compiled(self, which: str, module: fx.GraphModule, inputs: list[Any]) -> InductorProgram | None:
        start = time.perf_counter()
        with torch._C._DisableAutocast():
            code = self._options[which](module, inputs)
        return _program(code, time.perf_counter() - start)


def compile_with_inductor(
    gm: fx.GraphModule, inputs: Sequence[Any], compilers: Callable[[InductorCompilers], dict[str, Any]]
) -> Callable[..., Any]:
    """Has Inductor prepare a graph, and AOTAutograd trace it as Inductor asks, with compilers of ours in between.

    Arguments:
        gm: as Dynamo hands it to a backend.
        compilers: gives the `partition_fn`, `fw_compiler`, `bw_compiler` and `inference_compiler` that AOTAutograd
            calls, which may call Inductor's own.
    """
    from torch._dynamo.backends import common
    from torch._functorch import config as functorch_config
    from torch._inductor import compile_fx, config

    plain = common.aot_autograd

    def aot_autograd(**options: Any) -> Callable[..., Any]:
        # What a graph does to its inputs comes as results of it: a kernel that is recomputed must not do it twice.
        return plain(**{**options, **compilers(InductorCompilers(options)), "keep_inference_input_mutations": False})

    with (
        mock.patch.object(common, "aot_autograd", aot_autograd),
        config.patch(_SETTINGS),
        functorch_config.patch(enable_autograd_cache=False),
        _one_kernel_per_loop_nest(),
    ):
        call: Callable[..., Any] = compile_fx.compile_fx(gm, list(inputs))  # type: ignore[assignment]
    return call


@contextlib.contextmanager
def _told(metadata: Any) -> Iterator[None]:
    """What AOTAutograd tells compilers of a graph when it has been partitioned, told while it is."""
    context = torch._guards.TracingContext.try_get()
    if context is None:
        yield
        return
    before, context.fw_metadata = context.fw_metadata, metadata
    try:
        yield
    finally:
        context.fw_metadata = before


def _given_to_backward(backward: fx.GraphModule, strides: Sequence[Any] | None) -> list[Any]:
    """Fake tensors that a backward is given: what is saved lies as the compiled forward leaves it."""
    given = [p.meta.get("val") for p in backward.graph.find_nodes(op="placeholder")]
    for index, found in enumerate(strides or ()):
        value = given[index] if index < len(given) else None
        if found is not None and isinstance(value, torch.Tensor) and tuple(map(int, found)) != value.stride():
            given[index] = value.as_strided(value.size(), [int(n) for n in found])
    return given


def _program(code: Any, compile_s: float) -> InductorProgram | None:
    """The program behind what Inductor returns; None where that is a function which only hands on its arguments."""
    source = getattr(code, "source_code", None)
    if not source:
        return None
    call = code.current_callable
    call = getattr(call, "__func__", call)
    names = getattr(call, "__globals__", {})
    if "call" not in names:
        from torch._inductor.codecache import PyCodeCache

        names = next((vars(m) for m in PyCodeCache.modules if getattr(m, "key", None) == code.cache_key), None)
    if names is None or "call" not in names:
        raise CaptureError(
            f"torch {torch.__version__}'s Inductor returned a program whose module is not found, so that its "
            'kernels cannot be planned: use compiler="eager".'
        )
    traces = json.loads(getattr(code, "inductor_provenance_stack_traces_str", None) or "{}")
    return InductorProgram(source, names, traces, compile_s)


def _in_place(node: Any) -> list[tuple[str, str]]:
    """Results of a fused kernel that may be written over something that it reads, with the names of both.

    Every read of it, in every loop nest of the kernel, is at the very place of the only write, and no part of the
    kernel behind the one that writes reads it: an element is overwritten by the iteration that has just used it, or by
    one behind the loop that has used all of them.
    """
    from torch._inductor.dependencies import MemoryDep

    reads: dict[str, list[tuple[int, Any]]] = {}
    writes: dict[str, list[tuple[int, Any]]] = {}
    for place, part in enumerate(node.get_nodes()):
        for found, deps in ((reads, part.read_writes.reads), (writes, part.read_writes.writes)):
            for dep in deps:
                found.setdefault(dep.name, []).append((place, dep))
    pairs = []
    for made, ((written_at, write), *others) in writes.items():
        if others or made in reads or not isinstance(write, MemoryDep) or write.mode is not None:
            continue
        wanted = write.normalize()
        for read, uses in reads.items():
            if read not in writes and all(
                at <= written_at
                and isinstance(dep, MemoryDep)
                and (use := dep.normalize()).index == wanted.index
                and use.size == wanted.size
                for at, dep in uses
            ):
                pairs.append((made, read))
    return pairs


@contextlib.contextmanager
def _one_kernel_per_loop_nest() -> Iterator[None]:
    """Has the CPU backend end its kernel behind every loop nest (and not only where another kind of call follows).

    It also writes into the program which of a kernel's results may lie over what the kernel reads: a comment, which
    stays with the program in Inductor's cache.
    """
    from torch._inductor.codegen.common import device_codegens, init_backend_registration
    from torch._inductor.virtualized import V

    init_backend_registration()
    before = device_codegens["cpu"]

    def scheduling(scheduler: Any) -> Any:
        made = before.scheduling(scheduler)
        plain = made.codegen_node

        def codegen_node(node: Any) -> Any:
            for made_over, read in _in_place(node):
                V.graph.wrapper_code.writeline(f"# {IN_PLACE} {made_over} {read}")  # type: ignore[no-untyped-call]
            return plain(node)

        vars(made).update(ready_to_flush=lambda: True, codegen_node=codegen_node)
        return made

    device_codegens["cpu"] = dataclasses.replace(before, scheduling=scheduling)
    try:
        yield
    finally:
        device_codegens["cpu"] = before
