"""Operators are traced as the kernels that eager runs, where torch's capture would take arithmetic in Python instead.

torch gives some operators a second implementation in Python (`OpOverload.py_kernels`), for tracing: upsampling,
recurrent layers, margin losses, `stft`. Eager never runs it. Its roundings differ, or it draws other random numbers, or
it decides by other rules which product of matrices is taken. Inside a capture of ours those that torch registered in
the place of autograd's kernels, or of those that eager composes of others, are out of sight, whichever they are.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.device.dispatch_modes import OperatorMode
from lowtide.device.recurrence import gated_cell, gated_units
from lowtide.device.trees import leaves_of

aten = torch.ops.aten
_COMPOSITE, _AUTOGRAD = torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd
_KEYS = (_AUTOGRAD, _COMPOSITE)
# Of these the Python kernel may stay: it moves bytes and computes nothing, or it names a kernel of the same arithmetic.
_HARMLESS = frozenset(
    {
        *("broadcast_tensors", "empty", "one_hot", "pad_sequence", "tensor_split", "unsafe_chunk"),
        # Eager's operators overwrite the running statistics without saying so in their schema.
        *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
        "dropout",  # as `native_dropout`, which draws alike; `lowtide.capture.rewrite` has it round alike
    }
)
# Eager's kernels of these take symbolic sizes, so that nothing has to stand in for them.
_SYMBOLIC = ("upsample_", "_upsample_", "lstm", "gru", "rnn_")


@dataclass(eq=False)
class Traced:
    """What happened while a graph was traced.

    Arguments:
        in_python: operators that were traced as torch's arithmetic in Python all the same, whose results may differ.
    """

    in_python: dict[str, None] = field(default_factory=dict)


@contextlib.contextmanager
def composites_traced_as_eager() -> Iterator[Traced]:
    """Traces operators as the kernels that eager runs; says of which that was not possible."""
    traced = Traced()
    hidden = [(op, dict(op.py_kernels)) for op in (*python_kernels(), aten.gru_cell.default)]
    try:
        for op, kernels in hidden:
            for key in _KEYS:
                op.py_kernels.pop(key, None)
            if _is_composed(op) and not _name(op).startswith(_SYMBOLIC):
                kernel = kernels.get(_COMPOSITE) or kernels[_AUTOGRAD]
                op.py_kernels[_COMPOSITE] = _composed_by_eager(op, kernel, traced)
            op._dispatch_cache.clear()
        gru, cell = aten.gru.input, aten.gru_cell.default
        gru.py_kernels[_AUTOGRAD] = gru.py_kernels[_COMPOSITE] = gated_units
        cell.py_kernels[_AUTOGRAD] = cell.py_kernels[_COMPOSITE] = gated_cell
        with _folded_as_eager():
            yield traced
    finally:
        for op, kernels in hidden:
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()


def python_kernels() -> list[torch._ops.OpOverload]:
    """Operators whose gradients, or whose composition of others, this torch traces in Python with other arithmetic."""
    aten.gru.input, aten.lstm.input  # noqa: B018 -- an operator is looked up when it is first named
    packets = [p for p in list(vars(aten).values()) if isinstance(p, torch._ops.OpOverloadPacket)]
    found = [op for p in packets for op in list(vars(p).values()) if isinstance(op, torch._ops.OpOverload)]
    return [op for op in found if any(k in op.py_kernels for k in _KEYS) and _name(op) not in _HARMLESS]


def _name(op: torch._ops.OpOverload) -> str:
    return str(op._schema.name.partition("::")[2])


def _full_name(op: torch._ops.OpOverload) -> str:
    schema = op._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _is_composed(op: torch._ops.OpOverload) -> bool:
    """Whether eager composes an operator of others, in C++."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(_full_name(op), "CompositeImplicitAutograd"))


def _composed_by_eager(op: torch._ops.OpOverload, in_python: Callable[..., Any], traced: Traced) -> Callable[..., Any]:
    """Eager's composition of an operator; torch's own in Python where eager's cannot deal with what is traced."""

    @functools.wraps(in_python)
    def compose(*args: Any, **kwargs: Any) -> Any:
        if _name(op) == "matmul":
            # While it is traced eager's takes every tensor for a subclass of its own, and folds batches of 1 which
            # it multiplies as they are otherwise. With the rule below torch's own in Python is eager's exactly.
            return in_python(*args, **kwargs)
        if not any(_varies(x) for x in leaves_of((args, kwargs))):
            with _ChecksPass():  # type: ignore[no-untyped-call]
                return op._op_dk(_COMPOSITE, *args, **kwargs)
        traced.in_python[_full_name(op)] = None
        return in_python(*args, **kwargs)

    return compose


class _ChecksPass(OperatorMode):  # type: ignore[no-untyped-call]
    """Inside, eager's check of its arguments' values finds nothing: while they are traced they have none.

    `istft` asks by `equal` whether its windows leave a gap, which would be an error.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return False if func is aten.equal.default else func(*args, **(kwargs or {}))


def _varies(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return any(isinstance(n, torch.SymInt) for n in (*x.shape, *x.stride()))
    return isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool)


@contextlib.contextmanager
def _folded_as_eager() -> Iterator[None]:
    """Has products of a batch of matrices with one matrix taken as one product exactly where eager does so."""
    from torch._decomp import decompositions

    plain = getattr(decompositions, "should_fold", None)
    if plain is None:
        yield
        return
    decompositions.should_fold = functools.partial(_folds, _extents_of_1_count())
    try:
        yield
    finally:
        decompositions.should_fold = plain


@functools.cache
def _extents_of_1_count() -> bool:
    """Whether eager's `matmul` heeds the strides of extents of 1, which reach no element: up to torch 2.13 it does.

    Asked of eager itself, on a thread of its own: modes of the caller's, in which it decides otherwise, end there.
    """
    with ThreadPoolExecutor(1) as elsewhere:
        return "BmmBackward0" in elsewhere.submit(_product_of_extents_of_1).result()


def _product_of_extents_of_1() -> list[str]:
    """What autograd remembers of a product of matrices of one row each with one matrix, by name."""
    rows = torch.empty_strided((2, 1, 2), (2, 8, 1), device="meta", requires_grad=True)
    steps = [torch.matmul(rows, torch.empty(2, 2, device="meta")).grad_fn]
    for step in steps:
        steps += [before for before, _ in step.next_functions] if step is not None else []
    return [step.name() for step in steps if step is not None]


def _folds(extents_of_1_count: bool, tensor1: torch.Tensor, tensor2: torch.Tensor, is_out: bool) -> bool:
    """Whether eager's `matmul` folds the larger tensor into a matrix.

    torch's own rule in Python is another: it passes over extents of 1, and asks for strides without a gap.
    """
    first_is_larger = tensor1.dim() >= tensor2.dim()
    larger, smaller = (tensor1, tensor2) if first_is_larger else (tensor2.mT, tensor1)
    if larger.dim() < 3 or smaller.dim() > 2:
        return False
    if smaller.requires_grad and not is_out:
        return True
    if tensor1.dim() == 2:
        return False
    if larger.numel() == 0:
        return True
    rows = zip(larger.shape[:-1], larger.stride()[:-1], strict=True)
    heeded = [(extent, stride) for extent, stride in rows if extents_of_1_count or extent != 1]
    return all(bool(outer[1] == inner[0] * inner[1]) for outer, inner in itertools.pairwise(heeded))
