"""The release of torch: what the installed one lacks of what lowtide needs, and whether it was tested."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable

import torch

from lowtide.device.capture_errors import backend_failure, errors_left_to_eager, recompile_limit_error
from lowtide.device.compiled_code import sizes_learnt
from lowtide.device.engine_passes import compiled_autograd_enabled
from lowtide.device.fake_tensors import fake_mode, no_fake_kernel_error, no_value_error
from lowtide.device.graph_breaks import graph_breaks
from lowtide.device.in_place_layouts import copies_of_arguments
from lowtide.device.modules import hooks_of_all_modules
from lowtide.device.recomputation import hook_of_recomputation, recomputation_ended

TESTED = ("2.11", "2.15")
_LOG = logging.getLogger("lowtide")


def missing() -> list[str]:
    """Names of `semiprivate` that the installed torch lacks; empty on every tested release."""
    probes: dict[str, Callable[[], object]] = {
        "aot_autograd": lambda: __import__("torch._dynamo.backends.common", fromlist=["aot_autograd"]).aot_autograd,
        "maybe_to_fresh_input": copies_of_arguments,
        "TracingContext.try_get": lambda: torch._guards.TracingContext.try_get,
        "compiled_autograd_enabled": compiled_autograd_enabled,
        "FailOnRecompileLimitHit": recompile_limit_error,
        "BackendCompilerFailed": backend_failure,
        "_global_forward_hooks": hooks_of_all_modules,
        "_get_current_graph_task_keep_graph": lambda: torch._C._autograd._get_current_graph_task_keep_graph,
        "_current_graph_task_id": lambda: torch._C._current_graph_task_id,
        "_recomputation_hook": hook_of_recomputation,
        "_StopRecomputationError": recomputation_ended,
        "_init_group": lambda: torch.optim.AdamW._init_group,
        "skip_nnmodule_hook_guards": lambda: torch._dynamo.config.skip_nnmodule_hook_guards,
        "enable_dynamo_decompositions": lambda: torch._dynamo.config.enable_dynamo_decompositions,
        "reset_code": lambda: torch._C._dynamo.eval_frame.reset_code,
        "get_code_state": sizes_learnt,
        "peek_interpreter_stack": lambda: torch._C._functorch.peek_interpreter_stack,
        "_stance": lambda: torch._dynamo.eval_frame._stance.backend,
        "_current_level": lambda: importlib.import_module("torch.autograd.forward_ad")._current_level,
        "counters": graph_breaks,
        "exceptions_allowed_to_be_fallback": errors_left_to_eager,
        "fail_on_recompile_limit_hit": lambda: torch._dynamo.config.fail_on_recompile_limit_hit,
        "error_on_graph_break": lambda: torch._dynamo.error_on_graph_break,
        "allow_rnn": lambda: torch._dynamo.config.allow_rnn,
        "tracing_state_functions": lambda: (
            importlib.import_module("torch._dynamo.variables.torch").tracing_state_functions
        ),
        "LoggingLoggerVariable": lambda: (
            importlib.import_module("torch._dynamo.variables.misc").LoggingLoggerVariable.call_method
        ),
        "TensorifyState": lambda: (
            importlib.import_module("torch._dynamo.symbolic_convert").TensorifyState.force_specializations
        ),
        "WrapperUserFunctionVariable": lambda: (
            importlib.import_module("torch._dynamo.variables.functions").WrapperUserFunctionVariable.call_function
        ),
        "VariableBuilder": lambda: (
            importlib.import_module("torch._dynamo.variables.builder").VariableBuilder.wrap_module
        ),
        "NumpyVariable": lambda: importlib.import_module("torch._dynamo.variables.misc").NumpyVariable.call_function,
        "NumpyNdarrayVariable": lambda: (
            importlib.import_module("torch._dynamo.variables.tensor").NumpyNdarrayVariable.call_method
        ),
        "numpy_operator_wrapper": lambda: (
            importlib.import_module("torch._dynamo.variables.builtin").numpy_operator_wrapper
        ),
        "detect_fake_mode": lambda: torch._guards.detect_fake_mode,
        "FakeTensorMode": fake_mode,
        "DataDependentOutputException": no_value_error,
        "UnsupportedOperatorException": no_fake_kernel_error,
        "_pop_torch_function_stack": lambda: torch._C._pop_torch_function_stack,
        "_foreach_supported_types": lambda: importlib.import_module("torch.optim.optimizer")._foreach_supported_types,
        "_global_optimizer_pre_hooks": lambda: (
            importlib.import_module("torch.optim.optimizer")._global_optimizer_pre_hooks
        ),
        "_global_optimizer_post_hooks": lambda: (
            importlib.import_module("torch.optim.optimizer")._global_optimizer_post_hooks
        ),
    }
    lacking = []
    for name, probe in probes.items():
        try:
            probe()
        except (AttributeError, ImportError):
            lacking.append(name)
    return lacking


def warn_if_untested() -> None:
    """Logs once when this torch is newer or older than what lowtide was tested on."""
    release = ".".join(torch.__version__.split(".")[:2])
    low, high = (tuple(map(int, t.split("."))) for t in TESTED)
    if not low <= tuple(map(int, release.split("."))) <= high:
        _LOG.warning("torch %s was not tested with this lowtide (tested: %s to %s)", torch.__version__, *TESTED)
