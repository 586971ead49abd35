"""The CPU's recurrent layer as a call whose result does not depend on whether gradients are being recorded.

`aten.mkldnn_rnn_layer` makes the workspace that its backward reads only where gradients are being recorded, and the
forward of a captured graph runs where they are not: the backward would read from nothing.
"""

from __future__ import annotations

from typing import Any

import torch

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
