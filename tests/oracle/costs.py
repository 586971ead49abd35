"""Computes what an operator costs from its name and sizes: the same in every run, on every machine. Torch-free.

`src/lowtide/_shim/eager/costs.hpp` has the same formula, and says why costs are not measured.

Units: `_B` bytes, `_ns` nanoseconds.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence

Shape = tuple[tuple[int, ...], int]  # sizes, bytes per element

_CALL_ns = 1000
_B_PER_ns = 10
_OPERATIONS_PER_ns = 40
_SLOW = 16  # operations per element of a function that is no plain arithmetic


class Kind(enum.Enum):
    """How an operator's work follows from its sizes."""

    BYTES = enum.auto()
    PART = enum.auto()  # reads of its first input no more than it writes
    SLOW = enum.auto()
    MATMUL = enum.auto()
    ADD_MATMUL = enum.auto()
    CONVOLUTION = enum.auto()
    CONVOLUTION_BACKWARD = enum.auto()
    ATTENTION = enum.auto()
    ATTENTION_BACKWARD = enum.auto()
    RECURRENT = enum.auto()
    RECURRENT_BACKWARD = enum.auto()


_KINDS: Mapping[str, Kind] = {
    "mm": Kind.MATMUL,
    "bmm": Kind.MATMUL,
    "addmm": Kind.ADD_MATMUL,
    "baddbmm": Kind.ADD_MATMUL,
    "addbmm": Kind.ADD_MATMUL,
    "linear": Kind.ADD_MATMUL,
    "_addmm_activation": Kind.ADD_MATMUL,
    "convolution": Kind.CONVOLUTION,
    "_convolution": Kind.CONVOLUTION,
    "mkldnn_convolution": Kind.CONVOLUTION,
    "convolution_overrideable": Kind.CONVOLUTION,
    "convolution_backward": Kind.CONVOLUTION_BACKWARD,
    "convolution_backward_overrideable": Kind.CONVOLUTION_BACKWARD,
    "_scaled_dot_product_flash_attention_for_cpu": Kind.ATTENTION,
    "_scaled_dot_product_flash_attention": Kind.ATTENTION,
    "_scaled_dot_product_efficient_attention": Kind.ATTENTION,
    "_scaled_dot_product_flash_attention_for_cpu_backward": Kind.ATTENTION_BACKWARD,
    "_scaled_dot_product_flash_attention_backward": Kind.ATTENTION_BACKWARD,
    "_scaled_dot_product_efficient_attention_backward": Kind.ATTENTION_BACKWARD,
    "mkldnn_rnn_layer": Kind.RECURRENT,
    "mkldnn_rnn_layer_backward": Kind.RECURRENT_BACKWARD,
    "embedding": Kind.PART,
    "index_select": Kind.PART,
    "index": Kind.PART,
    "gather": Kind.PART,
    "select": Kind.PART,
    **dict.fromkeys(
        (
            "exp",
            "log",
            "tanh",
            "sigmoid",
            "erf",
            "gelu",
            "gelu_backward",
            "silu",
            "silu_backward",
            "mish",
            "softplus",
            "elu",
            "pow",
            "_softmax",
            "_log_softmax",
            "_safe_softmax",
            "bernoulli",
            "native_dropout",
            "normal",
            "uniform",
            "randn",
            "rand",
            "sort",
            "topk",
        ),
        Kind.SLOW,
    ),
}


def cost_kind(name: str) -> Kind:
    """The kind of `aten.addmm.default`, `aten::addmm`, or `addmm`; in-place forms count as the others."""
    base = name.split("::")[-1]
    parts = base.split(".")
    base = parts[1] if len(parts) > 2 else parts[0]
    return _KINDS.get(base, _KINDS.get(base.rstrip("_"), Kind.BYTES))


def formula_ns(name: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """A call's cost.

    Arguments:
        name: of the operator, with or without namespace and overload.
        inputs, outputs: its tensors, in the order of its arguments.

    O(dimensions).
    """
    kind = cost_kind(name)
    read_B, written_B = sum(map(_size_B, inputs)), sum(map(_size_B, outputs))
    if kind is Kind.PART and inputs:
        first_B = _size_B(inputs[0])
        read_B += min(first_B, written_B) - first_B
    return _CALL_ns + (read_B + written_B) // _B_PER_ns + _operations(kind, inputs, outputs) // _OPERATIONS_PER_ns


def _operations(kind: Kind, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    match kind:
        case Kind.SLOW:
            return _SLOW * sum(map(_count, outputs))
        case Kind.MATMUL:
            return _product(outputs, inputs, 0, -1)
        case Kind.ADD_MATMUL:
            return _product(outputs, inputs, 1, -1)
        case Kind.CONVOLUTION:
            return _convolved(inputs[0], inputs[1], outputs[0]) if len(inputs) > 1 and outputs else 0
        case Kind.CONVOLUTION_BACKWARD:
            if len(inputs) < 3:
                return 0
            return _convolved(inputs[1], inputs[2], inputs[0]) * sum(len(sizes) > 2 for sizes, _ in outputs)
        case Kind.ATTENTION:
            return 4 * _attended(inputs, 0)
        case Kind.ATTENTION_BACKWARD:
            return 10 * _attended(inputs, 1)
        case Kind.RECURRENT:
            return 2 * _recurrent(inputs, 0)
        case Kind.RECURRENT_BACKWARD:
            return 4 * _recurrent(inputs, 0)
        case _:
            return 0


def _size_B(shape: Shape) -> int:
    return _count(shape) * shape[1]


def _count(shape: Shape) -> int:
    return math.prod(shape[0])


def _last(shape: Shape, place: int) -> int:
    return shape[0][place] if len(shape[0]) >= -place else 1


def _product(outputs: Sequence[Shape], inputs: Sequence[Shape], factor: int, place: int) -> int:
    """Two for each element of the result and each term of its sum."""
    return 2 * _count(outputs[0]) * _last(inputs[factor], place) if outputs and len(inputs) > factor else 0


def _convolved(x: Shape, weight: Shape, y: Shape) -> int:
    """Each position of the larger side meets one filter; transposed convolutions have their filters along the input."""
    if not weight[0]:
        return 0
    filters = max(1, weight[0][0])
    straight = len(y[0]) > 1 and y[0][1] == filters
    return 2 * _count(y if straight else x) * (_count(weight) // filters)


def _attended(inputs: Sequence[Shape], query: int) -> int:
    """Elements of the query by the length of the keys."""
    return _count(inputs[query]) * _last(inputs[query + 1], -2) if len(inputs) > query + 1 else 0


def _recurrent(inputs: Sequence[Shape], x: int) -> int:
    """Every step of every sequence meets all elements of the weights, which are the matrices among the inputs."""
    if len(inputs) <= x:
        return 0
    steps = _count(inputs[x]) // max(1, _last(inputs[x], -1))
    return steps * sum(_count(shape) for shape in inputs[x + 1 :] if len(shape[0]) == 2)
