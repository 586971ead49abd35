"""Every name of torch that is not part of its documented surface, in one place.

Each entry says what it is needed for. `lowtide.device.releases` tests all of them against the installed torch, so that
a release that moves one is met by a sentence instead of a traceback.

| name | since | needed for |
| --- | --- | --- |
| `torch._dynamo.backends.common.aot_autograd` | 2.0 | capture: joint graph through `partition_fn` |
| `torch._guards.TracingContext` | 2.0 | capture: read the metadata of the forward |
| `fw_metadata.bw_donated_idxs` | 2.5 | capture: slots must not be donated, or `retain_graph` breaks |
| `fw_metadata.mutated_inp_runtime_indices`, `.output_info` | 2.1 | capture: which gradient becomes which tangent |
| `fw_metadata.subclass_tangent_meta` | 2.6 | capture: gradients are not copied unseen |
| `torch._functorch.config.backward_pass_autocast` | 2.9 | capture: the backward is traced as eager runs it |
| `OpOverload.py_kernels`, `OpOverload._dispatch_cache` | 2.0 | capture: composites become the operators of eager |
| `torch._dynamo.config.allow_rnn` | 2.6 | capture: recurrent layers are captured at all |
| `torch._dynamo.error_on_graph_break` | 2.9 | session: one graph is tried before several |
| `torch._dynamo.variables.torch.tracing_state_functions` | 2.2 | capture: models do what they do uncompiled |
| `torch._dynamo.trace_rules.get_torch_obj_rule_map` | 2.1 | session: graphs end where data is read |
| `torch._dynamo.compiled_autograd.compiled_autograd_enabled` | 2.4 | runtime: refuse what would bypass the plan |
| `torch._C._autograd._get_current_graph_task_keep_graph` | 2.5 | runtime: a retained graph keeps what it was given |
| `torch.autograd.Function.boxed_grads_call` | 2.13 | runtime: a backward's gradients go when a plan drops them |
| `torch._C._current_graph_task_id` | 2.1 | runtime: whether autograd runs a backward |
| `torch.optim.Optimizer._init_group` | 2.0 | whole steps: an optimizer makes its state before its first step |
| `torch._dynamo.config.fail_on_recompile_limit_hit` | 2.6 | session: a budget must not lapse silently |
| `torch._inductor.config.fallback_random` | 2.0 | capture: unused random numbers are drawn all the same |
| `torch._dynamo.config.recompile_limit` | 2.6 | session: torch's default is too small for models with breaks |
| `torch._dynamo.config.enable_dynamo_decompositions` | 2.11 | capture: operators are not rewritten before it |
| `FunctionalTensorMode.__torch_dispatch__`, `maybe_to_fresh_input` | 2.11 | capture: slices keep their gaps |
| `torch._dynamo.config.use_numpy_random_stream`, `trace_numpy` | 2.1 | session: numpy draws and computes for itself |
| `NumpyVariable.call_function` and two like it | 2.1 | session: a graph ends where torch would round otherwise |
| `WrapperUserFunctionVariable.call_function`, `VariableBuilder.wrap_module` | 2.1 | session: what is looked through |
| `torch._dynamo.symbolic_convert.TensorifyState`, `ShapeEnv.backed_var_to_val` | 2.6 | capture: captured again |
| `torch._dynamo.config.skip_tensor_guards_with_matching_dict_tags` | 2.6 | session: a thawed parameter is seen |
| `torch._dynamo.config.skip_nnmodule_hook_guards` | 2.0 | session: a hook that comes later is called |
| `torch.nn.modules.module._global_forward_hooks` and three more | 2.0 | session: so is one for all modules |
| `GraphModule.compile_subgraph_reason` | 2.0 | session: does a graph end at a break |
| `torch._dynamo.exc.exceptions_allowed_to_be_fallback` | 2.1 | session: which graphs run without lowtide |
| `torch._dynamo.utils.counters` | 2.0 | session: was there a graph break |
| `torch._subclasses.fake_tensor` | 2.0 | profile: an optimizer's step that costs no bytes |
| `torch._C._pop_torch_function_stack` and those like it | 2.0 | session: capture inside `torch.device("meta")` |
| `torch.optim.optimizer._foreach_supported_types` | 2.1 | profile: fake parameters are treated as real ones |
| `torch._C._CUDAPluggableAllocator.set_*_fn` | 2.1 | device: streams, refusals of lowtide's CUDA allocator |
| `torch._C._cuda_memoryStats` and those like it | 2.0 | device: true answers about a GPU's memory |
| `torch.optim.optimizer._global_optimizer_pre_hooks` | 2.1 | profile: nobody's hooks see a step that is a trial |
| `Reducer._rebuild_buckets`, `DistributedDataParallel._ddp_init_helper` | 2.0 | dynamic: buckets are kept |
| `torch._C._autograd._top_saved_tensors_default_hooks` | 2.5 | session: a checkpoint's second forward ends in time |
| `torch.utils.checkpoint._recomputation_hook`, `._StopRecomputationError` | 2.1 | the same |
| `torch.utils._python_dispatch.is_traceable_wrapper_subclass` | 2.1 | session: tensors made of others are refused |
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint
from torch.nn.parallel import DistributedDataParallel

_TORCHS_RECOMPILE_LIMIT, _RECOMPILE_LIMIT = 8, 64


def aot_autograd(**options: Any) -> Callable[..., Any]:
    """AOTAutograd as a Dynamo backend, with our partition function and compilers."""
    from torch._dynamo.backends.common import aot_autograd as make

    return make(**options)


@contextlib.contextmanager
def backward_traced_as_eager() -> Iterator[None]:
    """Traces the backward with autocast off, as eager runs a backward that is called outside autocast."""
    from torch._functorch import config

    if not hasattr(config, "backward_pass_autocast"):
        yield
        return
    with config.patch(backward_pass_autocast="off"):
        yield


@contextlib.contextmanager
def unused_draws_kept() -> Iterator[None]:
    """Leaves random numbers that nothing uses in the graphs that are traced inside.

    Drawing them advances the generator for all later draws. torch removes them unless it is told to draw as eager.
    """
    from torch._inductor import config

    with config.patch(fallback_random=True):
        yield


def forbid_donation() -> None:
    """Tells AOTAutograd, while it compiles a forward, that no saved tensor may be reused in the backward."""
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def tangent_positions() -> list[int] | None:
    """While a graph is captured: per tangent of its backward, its place among the gradients of the forward's results.

    Returns: None where tensor subclasses or this torch make the places unknown.
    """
    context = torch._guards.TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    try:
        if metadata is None or getattr(metadata, "subclass_inp_meta", None) is None:
            return None
        mutated = list(metadata.mutated_inp_runtime_indices)
        kinds = ("non_alias", "unsafe_view_alias", "custom_function_view")
        found = [
            i
            for i, index in enumerate(mutated)
            if metadata.input_info[index].mutates_data and metadata.input_info[index].requires_grad
        ]
        found += [
            len(mutated) + i
            for i, info in enumerate(metadata.output_info)
            if info.output_type.name in kinds
            and issubclass(info.raw_type, torch.Tensor)
            and getattr(info, "requires_grad_for_backward", info.requires_grad)
        ]
        first = len(mutated) + metadata.num_outputs
        return found + list(range(first, first + metadata.num_intermediate_bases))
    except AttributeError:
        return None


def compiled_autograd_enabled() -> bool:
    """Whether a backward would be inlined into another graph instead of calling our code."""
    from torch._dynamo import compiled_autograd

    return bool(compiled_autograd.compiled_autograd_enabled)


def backward_is_retained() -> bool:
    """Inside a backward: whether its graph is kept (`retain_graph`, `create_graph`), and all that it saved with it.

    Returns: False where autograd runs no backward: in a whole step, whose backward lowtide runs itself.
    """
    runs = torch._C._current_graph_task_id() != -1
    return runs and bool(torch._C._autograd._get_current_graph_task_keep_graph())


def number_of_engine_pass() -> int:
    """The number of the pass of autograd's engine that runs on this thread; -1 where none runs."""
    return int(torch._C._current_graph_task_id())


def at_end_of_backward(function: Callable[[], None]) -> bool:
    """Calls a function when the pass of autograd's engine that runs on this thread has ended.

    Returns: whether one runs.
    """
    if number_of_engine_pass() == -1:
        return False
    torch.autograd.Variable._execution_engine.queue_callback(function)
    return True


def hook_of_recomputation() -> Callable[[torch.Tensor], object] | None:
    """What is called with every tensor that is saved in a forward that `torch.utils.checkpoint` recomputes.

    Returns: that; None where this is no such forward.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    pack: Any = None if hooks is None else hooks[0]
    kind = torch.utils.checkpoint._recomputation_hook
    if getattr(pack, "__module__", "") != kind.__module__ or not pack.__qualname__.startswith(kind.__qualname__):
        return None
    return pack  # type: ignore[no-any-return]


def recomputation_ended() -> type[Exception]:
    """What a forward that `torch.utils.checkpoint` recomputes is ended by."""
    return torch.utils.checkpoint._StopRecomputationError


def gradients_are_given_away() -> bool:
    """Whether a captured backward may release the gradients that it is given: up to torch 2.12 it holds them."""
    return hasattr(torch.autograd.Function, "boxed_grads_call")


def refuse_second_derivatives(error: Exception, before: Callable[[], None]) -> None:
    """Inside a backward that autograd records (`create_graph`): a backward of it raises this error, not torch's own.

    Arguments:
        before: is called right before it is raised.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        made = frame.f_locals.get("CompiledFunctionBackward") if frame.f_code.co_name == "_double_backward" else None
        if isinstance(made, type):

            def backward(*_: object) -> None:
                before()
                raise error

            made.backward = staticmethod(backward)  # type: ignore[attr-defined]
            return
        frame = frame.f_back


def hooks_of_all_modules() -> tuple[Any, ...]:
    """The hooks that are called for every module of the process, in order."""
    from torch.nn.modules import module

    return tuple(
        hook
        for kind in (
            module._global_forward_pre_hooks,
            module._global_forward_hooks,
            module._global_backward_pre_hooks,
            module._global_backward_hooks,
        )
        for hook in kind.values()
    )


def graph_breaks() -> dict[str, int]:
    """How often Dynamo broke a graph so far in this process, by reason."""
    from torch._dynamo.utils import counters

    return dict(counters["graph_break"])


@contextlib.contextmanager
def refused_graph_breaks() -> Iterator[None]:
    """Makes Dynamo raise where it would break a graph, before anything has run."""
    with torch._dynamo.error_on_graph_break(True):
        yield


def forget_graph_breaks(before: dict[str, int]) -> None:
    """Lets Dynamo's count of graph breaks be what it was."""
    from torch._dynamo.utils import counters

    counters["graph_break"].clear()
    counters["graph_break"].update(before)


def ends_at_a_break(gm: torch.fx.GraphModule) -> bool:
    """Whether Dynamo ended this graph because it could not go on, so that more graphs of the model will follow."""
    return bool(getattr(getattr(gm, "compile_subgraph_reason", None), "graph_break", False))


@functools.cache
def _break_graphs_at_unpacking() -> None:
    """Has Dynamo end a graph at `pad_packed_sequence`, which reads data; up to torch 2.12 it fails there."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables import SkipFunctionVariable

    trace_rules.get_torch_obj_rule_map().setdefault(torch.nn.utils.rnn.pad_packed_sequence, SkipFunctionVariable)


@contextlib.contextmanager
def captured_as_eager() -> Iterator[None]:
    """Lets Dynamo capture what runs without it, all of it, or raise.

    It raises where it would go on in eager silently; it looks whether modules have got or lost hooks, and parameters
    have been frozen or thawed (torch 2.11 would not); it captures recurrent layers, which it leaves alone elsewhere; it
    takes `addcmul_` with a factor, say, as one operator, where it would write others that round otherwise (torch 2.11
    does so with `add_` too); numpy draws from its own generator, not from torch's. It leaves a model in
    DistributedDataParallel whole, where it would cut its graph at the borders of buckets: their gradients come together
    at the end of a planned backward anyway. It compiles a function for as many shapes as plans are kept for, unless the
    user has set torch's limit: Python code that many modules share is compiled once for each.
    """
    import torch._dynamo

    _break_graphs_at_unpacking()
    config: dict[str, object] = {
        "fail_on_recompile_limit_hit": True,
        "allow_rnn": True,
        "skip_nnmodule_hook_guards": False,
        "skip_tensor_guards_with_matching_dict_tags": False,
        "enable_dynamo_decompositions": False,
        "optimize_ddp": False,
        "use_numpy_random_stream": True,
    }
    if torch._dynamo.config.recompile_limit == _TORCHS_RECOMPILE_LIMIT:  # nobody has chosen another
        config["recompile_limit"] = _RECOMPILE_LIMIT
    with torch._dynamo.config.patch({k: v for k, v in config.items() if hasattr(torch._dynamo.config, k)}):
        yield


def recompile_limit_error() -> type[Exception]:
    """What Dynamo raises at the recompile limit when told to."""
    from torch._dynamo.exc import FailOnRecompileLimitHit

    return FailOnRecompileLimitHit


def capture_failures() -> tuple[type[Exception], ...]:
    """What Dynamo raises where it cannot capture code: the code may run all the same."""
    from torch._dynamo.exc import TorchRuntimeError, Unsupported

    return (Unsupported, TorchRuntimeError)


def backend_failure() -> type[Exception]:
    """What Dynamo wraps an error in that was raised inside a backend."""
    from torch._dynamo.exc import BackendCompilerFailed

    return BackendCompilerFailed


def errors_left_to_eager() -> tuple[type[Exception], ...]:
    """What Dynamo takes from a backend as a graph break: it runs what it has captured in plain Python."""
    from torch._dynamo.exc import exceptions_allowed_to_be_fallback

    return exceptions_allowed_to_be_fallback


def detect_fake_mode(examples: list[Any]) -> contextlib.AbstractContextManager[Any]:
    """The fake mode that made the given fake tensors, to make one more."""
    mode = torch._guards.detect_fake_mode(examples)
    return mode if mode is not None else contextlib.nullcontext()


def fake_mode() -> contextlib.AbstractContextManager[Any]:
    """A mode in which tensors have a geometry and a device but no bytes; it never runs a kernel to learn a shape."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_fallback_kernels=False)


def fake_tensor() -> type[torch.Tensor]:
    """What a fake mode makes."""
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


@contextlib.contextmanager
def no_function_modes() -> Iterator[None]:
    """Inside, no mode changes what functions do; `torch.device` as a context is one, and Dynamo breaks graphs in it."""
    modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


@contextlib.contextmanager
def bucket_buffers_made(inside: Callable[[], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """Has DistributedDataParallel allocate its buckets inside a context of ours: it compares their addresses later."""
    if not torch.distributed.is_available():
        yield
        return
    reducer = torch.distributed.Reducer  # type: ignore[attr-defined]
    places = [(reducer, "_rebuild_buckets"), (DistributedDataParallel, "_ddp_init_helper")]
    found = [(place, name, getattr(place, name)) for place, name in places if hasattr(place, name)]
    try:
        for place, name, method in found:
            setattr(place, name, _inside(inside, method))
        yield
    finally:
        for place, name, method in found:
            setattr(place, name, method)


def _inside(context: Callable[[], contextlib.AbstractContextManager[None]], call: Callable[..., Any]) -> Any:
    """A method that runs inside a context."""

    @functools.wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        with context():
            return call(*args, **kwargs)

    return called


def is_made_of_others(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no bytes of its own but those of tensors in it, as a DTensor or a quantized weight."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return bool(is_traceable_wrapper_subclass(tensor))


def no_value_error() -> type[Exception]:
    """What a fake tensor raises when its contents are asked for."""
    from torch._subclasses.fake_tensor import DataDependentOutputException

    return DataDependentOutputException


def no_fake_kernel_error() -> type[Exception]:
    """What a fake mode raises for an operator whose results it cannot foretell."""
    from torch._subclasses.fake_tensor import UnsupportedOperatorException

    return UnsupportedOperatorException


@contextlib.contextmanager
def optimizers_take_fakes_for_real() -> Iterator[None]:
    """Lets optimizers choose between loop, foreach and fused on fake parameters as they do on real ones."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim import optimizer

    plain = optimizer._foreach_supported_types
    optimizer._foreach_supported_types = [*plain, FakeTensor]
    try:
        yield
    finally:
        optimizer._foreach_supported_types = plain


def has_global_optimizer_hooks() -> bool:
    """Whether hooks are registered for the steps of all optimizers."""
    from torch.optim import optimizer

    return bool(optimizer._global_optimizer_pre_hooks or optimizer._global_optimizer_post_hooks)


@contextlib.contextmanager
def without_optimizer_hooks() -> Iterator[None]:
    """Keeps the hooks that are registered for the steps of all optimizers from being called."""
    from torch.optim import optimizer

    before, after = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
    kept_before, kept_after = dict(before), dict(after)
    try:
        before.clear()
        after.clear()
        yield
    finally:
        before.update(kept_before)
        after.update(kept_after)


def let_go_of_failed_backward() -> None:
    """Releases gradients that autograd's engine still holds of a backward that raised.

    Its queue of this thread outlives the failure, with the gradients that were under way; the next backward, be it
    a tiny one, empties it first.
    """
    with torch.inference_mode(False), torch.enable_grad():
        number = torch.zeros((), requires_grad=True)
        torch.autograd.grad(number * 1, number)


def change_cuda_allocator(library: str, entries: dict[str, int]) -> None:
    """Makes a library's functions this process's CUDA allocator.

    Arguments:
        library: path of the shared object.
        entries: addresses of what torch asks besides allocating: `record_stream`, `reset`, `base`, `begin_pool`.

    Raises:
        RuntimeError: if an allocator is in use already.
    """
    chosen = torch.cuda.memory.CUDAPluggableAllocator(library, "lowtide_cuda_malloc", "lowtide_cuda_free")
    inner = chosen.allocator()  # type: ignore[no-untyped-call]
    inner.set_record_stream_fn(entries["record_stream"])
    inner.set_reset_fn(entries["reset"])
    inner.set_base_alloc_fn(entries["base"])
    inner.set_begin_allocate_to_pool(entries["begin_pool"])
    torch.cuda.memory.change_current_allocator(chosen)


def cuda_index(device: Any) -> int:
    """The number of a CUDA device however it is named; None: the current one."""
    from torch.cuda._utils import _get_device_index

    return _get_device_index(device, optional=True)


@contextlib.contextmanager
def replaced_answers(answers: dict[str, Callable[..., Any]], *, mem_get_info: Callable[..., Any]) -> Iterator[None]:
    """Puts functions in the place of those by which torch asks its allocator, as far as this torch has them.

    Arguments:
        answers: by name in `torch._C`.
        mem_get_info: in the place of `torch.cuda.mem_get_info`.
    """
    wanted: list[tuple[Any, str, Callable[..., Any]]] = [(torch._C, name, call) for name, call in answers.items()]
    wanted += [(torch.cuda, "mem_get_info", mem_get_info), (torch.cuda.memory, "mem_get_info", mem_get_info)]
    found = [(place, name, call, getattr(place, name)) for place, name, call in wanted if hasattr(place, name)]
    try:
        for place, name, call, _ in found:
            setattr(place, name, call)
        yield
    finally:
        for place, name, _, before in found:
            setattr(place, name, before)
