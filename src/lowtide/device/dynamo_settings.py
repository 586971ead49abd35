"""What Dynamo is told about how to capture."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

_TORCHS_RECOMPILE_LIMIT, _RECOMPILE_LIMIT = 8, 64


@functools.cache
def _break_graphs_at_unpacking() -> None:
    """Has Dynamo end a graph at `pad_packed_sequence`, which reads data; up to torch 2.12 it fails there."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables import SkipFunctionVariable

    trace_rules.get_torch_obj_rule_map().setdefault(torch.nn.utils.rnn.pad_packed_sequence, SkipFunctionVariable)


def never_run_eagerly() -> None:
    """Has Dynamo, from now on, raise at its limit of recompiles instead of running a model in plain Python.

    It also looks, in every call, whether modules have got hooks or lost them.
    """
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._dynamo.config.skip_nnmodule_hook_guards = False


def let_extent_vary(tensor: torch.Tensor, dim: int) -> None:
    """Has Dynamo capture a graph for any extent of one dimension of an argument, unless the model fixes it."""
    torch._dynamo.maybe_mark_dynamic(tensor, dim)


def source_of(placeholder: torch.fx.Node) -> Any:
    """Where Dynamo found an argument of a graph, with a `name`; None where it does not say."""
    return getattr(placeholder, "_dynamo_source", None) or getattr(placeholder.meta.get("grapharg"), "source", None)


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


@contextlib.contextmanager
def captured_as_compiled() -> Iterator[None]:
    """Lets Dynamo capture what `torch.compile` captures, or raise where it would go on in eager silently.

    What that computes is left as it is. Hooks that come and go, and parameters that are frozen and thawed, are noticed;
    numbers of shapes and buckets of DistributedDataParallel are treated as by `captured_as_eager`.
    """
    config: dict[str, object] = {
        "fail_on_recompile_limit_hit": True,
        "skip_nnmodule_hook_guards": False,
        "skip_tensor_guards_with_matching_dict_tags": False,
        "optimize_ddp": False,
    }
    if torch._dynamo.config.recompile_limit == _TORCHS_RECOMPILE_LIMIT:
        config["recompile_limit"] = _RECOMPILE_LIMIT
    with torch._dynamo.config.patch({k: v for k, v in config.items() if hasattr(torch._dynamo.config, k)}):
        yield
