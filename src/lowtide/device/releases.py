"""The release of torch: what the installed one lacks of what lowtide needs, and whether it was tested."""

from __future__ import annotations

import importlib
import logging
from operator import attrgetter

import torch

TESTED = ("2.11", "2.15")
_LOG = logging.getLogger("lowtide")
_NEEDED = {
    "torch": (
        "Tensor._version",
        "Tensor._is_view",
        "Tensor._backward_hooks",
        "UntypedStorage._cdata",
        "_foreach_lerp_",
        "_from_functional_tensor",
        "_functionalize_commit_update",
        "_functionalize_replace",
        "_functionalize_sync",
    ),
    "torch._C": (
        "_AutoDispatchBelowAutograd",
        "_autograd._get_current_graph_task_keep_graph",
        "_autograd._profiler_enabled",
        "_autograd._top_saved_tensors_default_hooks",
        "_current_graph_task_id",
        "_dispatch_has_kernel_for_dispatch_key",
        "_dynamo.eval_frame.reset_code",
        "_functorch.peek_interpreter_stack",
        "_get_cublas_allow_bf16_reduced_precision_reduction",
        "_get_cublas_allow_fp16_reduced_precision_reduction",
        "_get_cudnn_benchmark",
        "_get_cudnn_deterministic",
        "_get_cudnn_enabled",
        "_get_fp32_precision_getter",
        "_get_mkldnn_enabled",
        "_len_torch_function_stack",
        "_pop_torch_function_stack",
        "_profiler._EventType.Allocation",
        "_push_on_torch_function_stack",
    ),
    "torch._dynamo": ("error_on_graph_break", "mark_static_address", "maybe_mark_dynamic"),
    "torch._dynamo.backends.common": ("aot_autograd",),
    "torch._dynamo.compiled_autograd": ("compiled_autograd_enabled",),
    "torch._dynamo.config": (
        "allow_rnn",
        "disable",
        "enable_dynamo_decompositions",
        "fail_on_recompile_limit_hit",
        "recompile_limit",
        "skip_nnmodule_hook_guards",
        "trace_numpy",
    ),
    "torch._dynamo.eval_frame": ("OptimizedModule", "_stance.backend", "_stance.stance"),
    "torch._dynamo.exc": (
        "BackendCompilerFailed",
        "FailOnRecompileLimitHit",
        "TorchRuntimeError",
        "Unsupported",
        "exceptions_allowed_to_be_fallback",
    ),
    "torch._dynamo.guards": ("GuardBuilder.TYPE_MATCH",),
    "torch._dynamo.pgo": ("get_code_state",),
    "torch._dynamo.symbolic_convert": ("TensorifyState.force_specializations", "is_forbidden"),
    "torch._dynamo.trace_rules": ("get_torch_obj_rule_map", "is_forbidden"),
    "torch._dynamo.utils": ("counters",),
    "torch._dynamo.variables": ("ConstantVariable.create", "SkipFunctionVariable"),
    "torch._dynamo.variables.builder": ("VariableBuilder._wrap", "VariableBuilder.wrap_module"),
    "torch._dynamo.variables.builtin": ("numpy_operator_wrapper",),
    "torch._dynamo.variables.ctx_manager": ("NullContextVariable",),
    "torch._dynamo.variables.functions": ("UserFunctionVariable", "WrapperUserFunctionVariable.call_function"),
    "torch._dynamo.variables.lists": ("BaseListVariable",),
    "torch._dynamo.variables.misc": ("LoggingLoggerVariable.call_method", "NumpyVariable.call_function"),
    "torch._dynamo.variables.tensor": (
        "NumpyNdarrayVariable.call_method",
        "TensorVariable.as_python_constant",
        "TensorVariable.is_python_constant",
        "TensorVariable.method_item",
    ),
    "torch._dynamo.variables.torch": ("TorchInGraphFunctionVariable._get_handlers", "tracing_state_functions"),
    "torch._functorch._aot_autograd.graph_capture_wrappers": ("maybe_to_fresh_input",),
    "torch._guards": ("TracingContext.get", "TracingContext.try_get", "detect_fake_mode", "tracing"),
    "torch._inductor.config": ("fallback_random",),
    "torch._ops": ("HigherOrderOperator", "OpOverload", "OpOverloadPacket"),
    "torch._subclasses.fake_tensor": (
        "DataDependentOutputException",
        "DynamicOutputShapeException",
        "FakeTensor",
        "FakeTensorMode._dispatch_impl",
        "FakeTensorMode.dispatch",
        "MetadataMismatchError",
        "UnsupportedFakeTensorException",
        "UnsupportedOperatorException",
    ),
    "torch._subclasses.functional_tensor": ("FunctionalTensor", "FunctionalTensorMode.__torch_dispatch__"),
    "torch.autograd": ("Variable._execution_engine.queue_callback",),
    "torch.autograd.forward_ad": ("_current_level",),
    "torch.nn": ("Module._call_impl", "Module._compiled_call_impl"),
    "torch.nn.modules.module": (
        "_global_backward_hooks",
        "_global_backward_pre_hooks",
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
    ),
    "torch.optim": ("AdamW._init_group",),
    "torch.optim.optimizer": (
        "_foreach_supported_types",
        "_global_optimizer_post_hooks",
        "_global_optimizer_pre_hooks",
    ),
    "torch.utils._python_dispatch": (
        "TorchDispatchMode",
        "_disable_current_modes",
        "is_traceable_wrapper_subclass",
    ),
    "torch.utils._pytree": (
        "TreeSpec",
        "keystr",
        "tree_flatten",
        "tree_flatten_with_path",
        "tree_leaves",
        "tree_map",
        "tree_map_only",
        "tree_map_with_path",
        "tree_unflatten",
    ),
    "torch.utils.checkpoint": ("_StopRecomputationError", "_recomputation_hook"),
}
"""By module what a capture cannot do without; what else the table of `semiprivate` names may be missing."""
_NEEDED_TO_COMPILE = {
    "torch._C": ("_DisableAutocast", "_dynamo.guards._empty_strided_cpu", "_dynamo.guards._reinterpret_tensor"),
    "torch._functorch.config": ("enable_autograd_cache",),
    "torch._guards": ("TracingContext.report_output_strides",),
    "torch._inductor.codecache": ("PyCodeCache.modules",),
    "torch._inductor.codegen.common": ("device_codegens", "init_backend_registration"),
    "torch._inductor.compile_fx": ("compile_fx", "partition_fn"),
    "torch._inductor.config": ("allow_buffer_reuse", "inplace_buffers", "unsafe_marked_cacheable_functions"),
    "torch._inductor.dependencies": ("MemoryDep",),
    "torch._inductor.virtualized": ("V",),
}
"""The same for kernels that Inductor compiles."""
_OF_OPERATORS = ("_dispatch_cache", "_op_dk", "_schema", "py_kernels")


def missing(*, compiled: bool = False) -> list[str]:
    """Names of `semiprivate` that the installed torch lacks and a capture needs; empty on every tested release.

    Arguments:
        compiled: whether Inductor's kernels are to be planned, which needs more.
    """
    lacking = []
    for module, names in (*_NEEDED.items(), *(_NEEDED_TO_COMPILE.items() if compiled else ())):
        for name in names:
            try:
                attrgetter(name)(importlib.import_module(module))
            except (AttributeError, ImportError):
                lacking.append(name)
    operator = torch.ops.aten.add.Tensor
    lacking += [f"OpOverload.{name}" for name in _OF_OPERATORS if not hasattr(operator, name)]
    return lacking


def warn_if_untested() -> None:
    """Logs once when this torch is newer or older than what lowtide was tested on."""
    release = ".".join(torch.__version__.split(".")[:2])
    low, high = (tuple(map(int, t.split("."))) for t in TESTED)
    if not low <= tuple(map(int, release.split("."))) <= high:
        _LOG.warning("torch %s was not tested with this lowtide (tested: %s to %s)", torch.__version__, *TESTED)
