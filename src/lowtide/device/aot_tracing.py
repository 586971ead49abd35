"""How AOTAutograd is called, what it is told while it traces, and what it knows of the graph that it traces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


def aot_autograd(**options: Any) -> Callable[..., Any]:
    """AOTAutograd as a Dynamo backend, with our partition function and compilers."""
    from torch._dynamo.backends.common import aot_autograd as make

    return make(**options)


def boxed(function: Callable[[list[Any]], Sequence[Any]]) -> Callable[..., Any]:
    """Compiled code for AOTAutograd that takes its arguments in one list, which it may empty."""

    def call(arguments: list[Any]) -> Sequence[Any]:
        return function(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


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

    Drawing them moves the generator, and so every later number. torch removes them unless it is told to draw as eager.
    """
    from torch._inductor import config

    with config.patch(fallback_random=True):
        yield


def forbid_donation() -> None:
    """Tells AOTAutograd, while it compiles a forward, that no saved tensor may be reused in the backward."""
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def static_primals() -> list[int]:
    """While a graph is captured: which of its inputs are parameters or buffers, where AOTAutograd does not tell."""
    context = torch._guards.TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    return list(getattr(metadata, "static_input_indices", None) or [])


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
