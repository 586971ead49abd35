"""What surrounds a call that makes it impossible to capture, in words: torch would pass a capture by in silence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

from lowtide.device.trees import tensors_in

_CAPTURING = (
    "default",
    "fail_on_recompile",
)  # stances in which Dynamo captures what it is given, or says that it won't


def obstruction(arguments: Any, tensors: Iterable[torch.Tensor]) -> str:
    """Says why a call would run past every capture, and what to do about it; empty where it would not.

    Arguments:
        arguments: of the call; tensors in them count.
        tensors: parameters and buffers of the model.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return (
            "a transform of torch.func (grad, vmap, jvp, jacrev, ...) surrounds this call: lowtide runs forward and "
            "backward as generated code, which such transforms cannot look into. Transform a plain copy, "
            "copy.deepcopy(model), or call lowtide.unfit(model) first."
        )
    if _current_level() >= 0 and any(_is_dual(t) for t in (*tensors_in(arguments), *tensors)):
        return (
            "forward-mode automatic differentiation (torch.autograd.forward_ad, torch.func.jvp) surrounds this call: "
            "lowtide runs the forward as generated code, through which no tangents flow. Use a plain copy, "
            "copy.deepcopy(model), or call lowtide.unfit(model) first."
        )
    return _switched_off()


def _current_level() -> int:
    return int(forward_ad._current_level)


def _is_dual(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None  # type: ignore[no-untyped-call]


def _switched_off() -> str:
    """Why nothing is captured in this process now; empty where it is."""
    stance = torch._dynamo.eval_frame._stance
    if stance.stance not in _CAPTURING:
        said = f'torch.compiler.set_stance("{stance.stance}")'
    elif stance.backend is not None:
        said = "torch.compiler.set_stance(force_backend=...)"
    elif torch._dynamo.config.disable:
        said = "torch._dynamo.config.disable (TORCH_COMPILE_DISABLE or TORCHDYNAMO_DISABLE)"
    else:
        return ""
    return (
        f"{said} is in force, so that nothing is captured, and the call would run in plain Python, outside the budget. "
        'Take it back, as in torch.compiler.set_stance("default"), or train without lowtide: lowtide.unfit(model).'
    )
