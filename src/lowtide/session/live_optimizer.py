"""An optimizer as whole steps see it: stepped parameter by parameter where that is the same, else as it is.

Units: `_B` bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from lowtide.device.optimizer_hooks import has_hooks, is_wrapped_by_scheduler
from lowtide.ir.layout import alignment_of, rounded_B
from lowtide.ops.updates import SEPARABLE, Separable, flags_of, options_of, overwrites_gradient, twin_for
from lowtide.profile.optimizer import optimizer_needs
from lowtide.profile.signature import geometry_of
from lowtide.runtime.updater import Updater, living


class LiveOptimizer:
    """One optimizer and an updater for each parameter that gets a gradient.

    Arguments:
        optimizer: named weakly.
        master_weights: whether parameters of fewer than 32 bits are steps of float32 copies.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, master_weights: bool = False) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.master_weights = master_weights
        self._updaters: dict[int, Updater] = {}
        self._updates_B: dict[object, int] = {}  # what is alike in two parameters -> what the update of one takes

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The real one."""
        return living(self._optimizer)

    @property
    def opaque(self) -> str:
        """The reason why it is stepped as a whole; empty where parameters are stepped one by one."""
        return why_opaque(self.optimizer)

    @property
    def kind(self) -> Separable:
        """Its class, which is a separable one."""
        return SEPARABLE[type(self.optimizer).__name__]

    def group_of(self, parameter: torch.Tensor) -> int | None:
        """Index of a parameter's group; None if it is not stepped. O(parameters)."""
        for index, group in enumerate(self.optimizer.param_groups):
            if any(p is parameter for p in group["params"]):
                return index
        return None

    def groups(self) -> dict[int, int]:
        """Identity of a parameter -> index of its group."""
        return {id(p): i for i, group in enumerate(self.optimizer.param_groups) for p in group["params"]}

    def updater_of(self, parameter: torch.Tensor, group: int) -> Updater:
        """The updater of a parameter, the same one every time."""
        found = self._updaters.get(id(parameter))
        if found is None:
            few = parameter.is_floating_point() and parameter.dtype.itemsize < 4
            found = Updater(self.optimizer, parameter, group, master=self.master_weights and few)
            self._updaters[id(parameter)] = found
        found.group = group
        return found

    @property
    def updaters(self) -> dict[int, Updater]:
        """By identity of the parameter, those that a step has needed so far."""
        return self._updaters

    def tensors(self) -> Iterator[torch.Tensor]:
        """The tensors that are kept from step to step for the parameters that are stepped one by one."""
        for updater in self._updaters.values():
            if updater.gathered is not None:
                yield updater.gathered
            if not self.opaque:
                yield from updater.tensors().values()
                yield from updater.numbers()

    def updates_B(self) -> int:
        """Most bytes that the update of one of the parameters takes on top of what is kept for it. O(parameters).

        Raises:
            LowtideError: if a torch profiler is running and something has to be measured.
        """
        return max(map(self._update_B, self._updaters.values()), default=0)

    def _update_B(self, updater: Updater) -> int:
        """The same of one, found out once for all that are alike, on tensors without bytes."""
        group, parameter = self.optimizer.param_groups[updater.group], updater.parameter
        stepped = parameter if updater.master is None else updater.master
        alike = (geometry_of(parameter), updater.master is not None, flags_of(group))
        if alike not in self._updates_B:
            alone = stepped.detach().requires_grad_()
            twin = twin_for(self.optimizer, group, alone, {})
            unit_B = alignment_of(alone.device.type)
            needs = optimizer_needs(twin, device=alone.device.type, alignment_B=unit_B)
            stepped_B = rounded_B(stepped.nbytes, unit_B)
            widened_B = 0 if updater.master is None else stepped_B  # the gradient, in as many bits
            copied_B = stepped_B if overwrites_gradient(group, stepped) else 0
            self._updates_B[alike] = needs.temporaries_B + widened_B + copied_B
        return self._updates_B[alike]

    def regroup(self) -> None:
        """Notes which group each parameter is in now: users regroup them. O(parameters)."""
        for key, group in self.groups().items():
            if key in self._updaters:
                self._updaters[key].group = group

    def layout(self) -> tuple[Any, ...]:
        """A key of the operators that a step runs: each parameter's options, numbers only by whether they are zero."""
        sharing: dict[Any, list[int]] = {}
        for group in self.optimizer.param_groups:
            sharing.setdefault(options_of(group), []).extend(map(id, group["params"]))
        return (self.opaque, frozenset((options, tuple(sorted(ids))) for options, ids in sharing.items()))

    def forget(self) -> None:
        """Drops state that was made for first steps which never came."""
        self._updaters.clear()


def why_opaque(optimizer: torch.optim.Optimizer) -> str:
    """The reason why an optimizer cannot be stepped parameter by parameter; empty if it can."""
    kind = type(optimizer)
    if kind.__name__ not in SEPARABLE or getattr(torch.optim, kind.__name__, None) is not kind:
        return f"{kind.__name__} is not one of the optimizers that are known to step each parameter by itself"
    step = vars(optimizer).get("step")
    if step is not None and not is_wrapped_by_scheduler(step):
        return "its step was replaced"
    if has_hooks(optimizer):
        return "hooks are registered for its step"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "its step is to be differentiable"
    if getattr(optimizer, "grad_scale", None) is not None or getattr(optimizer, "found_inf", None) is not None:
        return "a gradient scaler steps it"
    return ""
