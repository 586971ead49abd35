"""An optimizer's steps, tried on its twin. Units: `_B` bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch

from lowtide.device.trees import tensors_in
from lowtide.profile.twins import StandIns, twin_of

_LATE = 9_999  # steps done before a late one, the ten-thousandth: past warm-ups, and due on most schedules


class Counted(msgspec.Struct, frozen=True):
    """What a trial found.

    Arguments:
        sizes_B: of the storages that make up the state.
        temporaries_B: most bytes during a step beyond parameters, gradients and state.
        note: what people should know about these figures; empty when there is nothing.
    """

    sizes_B: tuple[int, ...]
    temporaries_B: int
    note: str = ""


class Trial:
    """The twin of an optimizer, over stand-ins for its parameters, with gradients; made in the active modes.

    Arguments:
        optimizer: is not changed.
        groups: those of its parameter groups that take part, with those of their parameters that do.
        gradients: a tensor like the gradient of each parameter that has one, by the parameter's identity.

    Raises:
        Exception: whatever an attribute of the optimizer raises that cannot be copied.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        groups: Sequence[dict[str, Any]],
        gradients: Mapping[int, torch.Tensor],
    ) -> None:
        parameters, own = StandIns(), StandIns()
        stand_ins: dict[int, torch.Tensor] = {}
        for p in (p for group in groups for p in group["params"]):
            stand_ins[id(p)] = stand_in = parameters.of_trained(p)
            if id(p) in gradients:
                stand_in.grad = own.of_trained(gradients[id(p)]).detach()
        self._parameters = list(stand_ins.values())
        self._twin = twin_of(optimizer, groups, stand_ins)

    @property
    def given(self) -> list[torch.Tensor]:
        """The parameters and their gradients, as they are now, and options that are tensors."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        return [*self._parameters, *gradients, *_options(self._twin)]

    @property
    def state(self) -> list[torch.Tensor]:
        """The tensors that the twin holds besides them."""
        given = {id(t) for t in self._parameters}
        return [t for t in held_tensors(self._twin) if id(t) not in given]

    def step(self) -> None:
        """Steps the twin once, with gradients enabled, as people call it.

        Raises:
            Exception: whatever the optimizer raises.
        """
        with torch.enable_grad():
            type(self._twin).step(self._twin)

    def make_late(self) -> None:
        """Lets the twin believe that it made thousands of steps, where it counts them under the name `step`."""
        for record in (*self._twin.state.values(), *self._twin.param_groups):
            count = record.get("step") if isinstance(record, dict) else None
            if isinstance(count, torch.Tensor) and count.numel() == 1:
                count.fill_(_LATE)
            elif isinstance(count, int | float):
                record["step"] = type(count)(_LATE)


def held_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Tensors in an optimizer's state and attributes, each once, without its options; parameters if they are there."""
    others = {k: v for k, v in vars(optimizer).items() if k not in ("param_groups", "state")}
    held = tensors_in([list(optimizer.state.values()), others])
    known = {id(t) for t in _options(optimizer)}
    return [t for t in {id(t): t for t in held}.values() if id(t) not in known]


def _options(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return tensors_in(options)
