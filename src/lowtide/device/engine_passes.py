"""What autograd's engine is doing on this thread: whether it runs a backward, and what becomes of that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch


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


def nodes_of_engine_pass() -> Iterator[Any]:
    """The nodes that are reached from the roots of the pass of autograd's engine that runs on this thread.

    Returns: each once; none where the caller of the engine is not to be seen. O(nodes).
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not torch.autograd.graph._engine_run_backward.__code__:
        frame = frame.f_back
    roots: Any = () if frame is None else frame.f_locals.get("t_outputs", ())
    pending = [getattr(root, "node", None) or root.grad_fn for root in roots]  # edges, or tensors
    seen: set[Any] = {None}
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            yield node
            pending += [following for following, _ in node.next_functions]


def at_end_of_backward(function: Callable[[], None]) -> bool:
    """Calls a function when the pass of autograd's engine that runs on this thread has ended.

    Returns: whether one runs.
    """
    if number_of_engine_pass() == -1:
        return False
    torch.autograd.Variable._execution_engine.queue_callback(function)
    return True


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


def let_go_of_failed_backward() -> None:
    """Releases gradients that autograd's engine still holds of a backward that raised.

    Its queue of this thread outlives the failure, with the gradients that were on their way; the next backward, be it
    a tiny one, empties it first.
    """
    with torch.inference_mode(False), torch.enable_grad():
        number = torch.zeros((), requires_grad=True)
        torch.autograd.grad(number * 1, number)
