"""Recurrent layers of the CPU as a captured graph can have them, rounded as eager's.

`aten.mkldnn_rnn_layer` makes the workspace that its backward reads only where gradients are being recorded, and the
forward of a captured graph runs where they are not: the backward would read from nothing. So there is a call of our
own that always makes it. `aten.gru` computes in place, which a captured graph cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

_LIBRARY = torch.library.Library("lowtide", "DEF")  # type: ignore[no-untyped-call]  # definitions live as long as it does
_EAGER = torch.ops.aten.mkldnn_rnn_layer.default


def _with_workspace(*arguments: Any) -> Any:
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return _EAGER(*arguments)


_LIBRARY.define("recurrent_layer" + str(_EAGER._schema).partition("mkldnn_rnn_layer")[2])  # type: ignore[no-untyped-call]
_LIBRARY.impl("recurrent_layer", _with_workspace, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

RECURRENT_LAYER = torch.ops.lowtide.recurrent_layer.default
"""`aten.mkldnn_rnn_layer` that always makes its workspace: results 0 to 2 as ever, 3 for the backward."""
EAGER_RECURRENT_LAYER = _EAGER


def gated_units(
    given: torch.Tensor,
    hidden: torch.Tensor,
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`aten.gru` on a CPU, in operators that round as eager's.

    Eager's cell computes gates in place, in slices of a wider tensor; the sigmoid of a slice with gaps is rounded
    otherwise than that of a tensor without. A captured graph has no operators in place, so here both gates are slices
    of one sum. Cho et al., "Learning phrase representations using RNN encoder-decoder", EMNLP 2014.

    Arguments: as of the operator.

    Returns: outputs of the last layer, and every layer's last state.
    """
    if given.device.type != "cpu":
        arguments = (given, hidden, weights, has_biases, layers, dropout, training, bidirectional, batch_first)
        own = torch._C.DispatchKey.CompositeImplicitAutograd
        return torch.ops.aten.gru.input._op_dk(own, *arguments)  # type: ignore[no-any-return]
    each = 4 if has_biases else 2
    sets = [tuple(weights[i : i + each]) for i in range(0, len(weights), each)]
    directions = 2 if bidirectional else 1
    states = hidden.unbind(0)
    layer, last = given.transpose(0, 1) if batch_first else given, []
    for index in range(layers):
        found = []
        for direction in range(directions):
            at = index * directions + direction
            outputs, state = _unrolled(layer, states[at], sets[at], backwards=direction == 1)
            found.append(outputs)
            last.append(state)
        layer = torch.cat(found, -1) if bidirectional else found[0]
        if dropout and training and index < layers - 1:
            layer = torch.dropout(layer, dropout, True)
    return layer.transpose(0, 1) if batch_first else layer, torch.stack(last, 0)


def _unrolled(
    given: torch.Tensor, state: torch.Tensor, weights: Sequence[torch.Tensor], *, backwards: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """One layer in one direction: outputs in the order of time, and the last state."""
    to_input, to_state, *biases = weights
    input_bias, state_bias = biases or (None, None)
    steps = list(F.linear(given, to_input, input_bias).unbind(0))
    outputs = []
    for step in reversed(steps) if backwards else steps:
        state = _next_state(step, F.linear(state, to_state, state_bias), state)
        outputs.append(state)
    return torch.stack(outputs[::-1] if backwards else outputs, 0), state


def gated_cell(
    given: torch.Tensor,
    state: torch.Tensor,
    to_input: torch.Tensor,
    to_state: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    state_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """`aten.gru_cell` on a CPU, in operators that round as eager's; see `gated_units`.

    Arguments: as of the operator.
    """
    if given.device.type != "cpu":
        arguments = (given, state, to_input, to_state, input_bias, state_bias)
        own = torch._C.DispatchKey.CompositeImplicitAutograd
        return torch.ops.aten.gru_cell.default._op_dk(own, *arguments)  # type: ignore[no-any-return]
    return _next_state(F.linear(given, to_input, input_bias), F.linear(state, to_state, state_bias), state)


def _next_state(step: torch.Tensor, before: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The next state, from what input and state contribute to the gates, and the state."""
    width = state.shape[-1]
    gates, new = step.split_with_sizes([2 * width, width], 1)
    state_gates, state_new = before.split_with_sizes([2 * width, width], 1)
    reset, update = (state_gates + gates).split_with_sizes([width, width], 1)
    reset, update = reset.sigmoid(), update.sigmoid()
    candidate = (new + state_new * reset).tanh()
    return (state - candidate) * update + candidate
