"""One parameter with its optimizer: what generated code steps where the parameter's update stands.

Options are read when the update runs, so that schedulers do what they always do. State that an optimizer makes in its
first step is made before, since a plan needs to know it; until that step is done it is not the optimizer's.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

from lowtide.device.versions import version_of
from lowtide.errors import OptimizerError
from lowtide.ops.updates import MASTER, advance, initial_state


def living(optimizer: weakref.ref[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """The optimizer that a step names weakly.

    Raises:
        OptimizerError: if it is gone.
    """
    found = optimizer()
    if found is None:
        raise OptimizerError("the optimizer of this step is gone: keep it as long as the step")
    return found


class Updater:
    """A parameter and the optimizer that steps it, both named weakly: compiled code lives longer.

    Arguments:
        group: index of its group in the optimizer.
        master: whether the optimizer steps a float32 copy, of which the parameter is a rounding.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor, group: int, *, master: bool = False
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._parameter = weakref.ref(parameter)
        self.group = group
        self.master: torch.Tensor | None = None
        self.gathered: torch.Tensor | None = None  # the sum of gradients so far, where several calls make a step
        self._prepared: dict[str, Any] | None = None  # state for a first step that is still to come
        self._version = version_of(parameter)
        if master:
            self.master = parameter.detach().float()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The real one."""
        return living(self._optimizer)

    @property
    def parameter(self) -> torch.Tensor:
        """The real one."""
        found = self._parameter()
        if found is None:
            raise OptimizerError("a parameter of this step is gone: keep the model as long as the step")
        return found

    def state(self) -> dict[str, Any]:
        """The optimizer's own state of the parameter; before its first step, what it will begin with."""
        own: dict[str, Any] | None = self.optimizer.state.get(self.parameter)
        if own:
            self._prepared = None
            if not self._lacks_momentum(own):
                return own
        if self._prepared is None:
            source = self.parameter if self.master is None else self.master
            state = dict(own or {})
            state.update(initial_state(self.optimizer, self.optimizer.param_groups[self.group], source, state))
            self._prepared = state
        return self._prepared

    def _lacks_momentum(self, state: Mapping[str, Any]) -> bool:
        group = self.optimizer.param_groups[self.group]
        wants = isinstance(self.optimizer, torch.optim.SGD) and bool(group["momentum"])
        return wants and state.get("momentum_buffer") is None

    def refresh(self) -> None:
        """Makes the master anew where somebody else has written to the parameter."""
        if self.master is not None and version_of(self.parameter) != self._version:
            self.master.copy_(self.parameter.detach())
            self.stepped()

    def stepped(self) -> None:
        """The parameter is as the updater left it."""
        self._version = version_of(self.parameter)

    def gather(self) -> torch.Tensor:
        """Where gradients are added up: at first negative zeros, to which anything is added as it is."""
        if self.gathered is None:
            like = self.parameter.detach()
            self.gathered = torch.full_like(like, -0.0, memory_format=torch.preserve_format)
        return self.gathered

    def tensors(self) -> dict[str, torch.Tensor]:
        """What is kept for the parameter from step to step and is more than a number, by name."""
        found = {} if self.master is None else {MASTER: self.master}
        found.update((k, v) for k, v in self.state().items() if isinstance(v, torch.Tensor) and v.dim() > 0)
        return found

    def numbers(self) -> list[torch.Tensor]:
        """State tensors without a dimension: counters."""
        return [v for v in self.state().values() if isinstance(v, torch.Tensor) and v.dim() == 0]

    def step(self, weight: torch.Tensor, gradient: torch.Tensor, states: Mapping[str, torch.Tensor]) -> None:
        """Steps the parameter, whose content and state are in these tensors: the real ones, or where they visit."""
        optimizer, real = self.optimizer, self.state()
        group: Mapping[str, Any] = optimizer.param_groups[self.group]
        begins = real is self._prepared
        if begins and "dampening" in group:  # the first momentum is the gradient, undamped
            group = {**group, "dampening": 0}
        state = {**real, **states}
        advance(optimizer, group, weight, gradient, state)
        for name, value in state.items():
            if name not in states:
                real[name] = value
        if begins and real:
            optimizer.state[self.parameter] = real
            self._prepared = None
