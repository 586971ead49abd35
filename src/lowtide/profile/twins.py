"""A second optimizer like a given one, over stand-ins: it can be stepped and nothing of the first one changes.

Units: `_B` bytes.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lowtide.device.dispatch_modes import no_modes
from lowtide.device.optimizer_hooks import is_table_of_hooks
from lowtide.device.storage import number_of_storage
from lowtide.profile.signature import as_strided, geometry_of


class StandIns:
    """Tensors of the same geometry as given ones, sharing storages where those do; made in the active modes.

    Floats are one.
    """

    def __init__(self) -> None:
        self._storages: dict[int, torch.Tensor] = {}  # identity of the real storage -> the bytes that stand for it

    def of_trained(self, tensor: torch.Tensor) -> torch.Tensor:
        """The stand-in of a parameter, which is one too, or of a gradient."""
        made = self._like(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(made, tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)

    def of_held(self, tensor: torch.Tensor) -> torch.Tensor:
        """The stand-in of what an optimizer keeps. One element on the CPU has its value: a count, or an option."""
        if tensor.numel() != 1 or tensor.device.type != "cpu" or isinstance(tensor, torch.nn.Parameter):
            return self.of_trained(tensor)
        with no_modes():
            value = tensor.detach().item()
        made = torch.tensor(value, dtype=tensor.dtype)  # not torch.full: a fake one would not know its value
        return made.reshape(tensor.shape) if tensor.dim() else made

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        geometry = geometry_of(tensor)
        storage, number = tensor.untyped_storage(), number_of_storage(tensor)
        if number not in self._storages:
            size_B = max(storage.nbytes(), geometry.extent_B)
            device = "cpu" if tensor.device.type == "meta" else tensor.device  # there operators can be tried
            self._storages[number] = torch.zeros(size_B, dtype=torch.uint8, device=device)
        own = self._storages[number]
        whole_B = own.numel() // tensor.dtype.itemsize * tensor.dtype.itemsize
        made = as_strided(own[:whole_B].view(tensor.dtype), geometry)
        return made.fill_(1) if tensor.is_floating_point() and tensor.dtype.itemsize > 1 else made


def twin_of(
    optimizer: torch.optim.Optimizer, groups: Sequence[dict[str, Any]], stand_ins: dict[int, torch.Tensor]
) -> torch.optim.Optimizer:
    """Copies an optimizer: its options, state and other attributes, but no hook and no method patched onto it.

    Arguments:
        optimizer: whose class the twin has; its constructor does not run.
        groups: those of its parameter groups that the twin has, each with those of its parameters that it has.
        stand_ins: what the twin has for every one of these parameters, by identity.

    Returns: the twin. Tensors in its state, options and attributes are stand-ins, too.

    Raises:
        Exception: whatever an attribute raises that cannot be copied.
    """
    kind = type(optimizer)
    twin = kind.__new__(kind)
    memo: dict[int, Any] = {id(optimizer): twin, **stand_ins}
    with _Copying(StandIns()):
        for name, value in vars(optimizer).items():
            if is_table_of_hooks(name):
                vars(twin)[name] = OrderedDict()
            elif name == "param_groups":
                vars(twin)[name] = copy.deepcopy(list(groups), memo)
            elif name == "state":
                vars(twin)[name] = _state(value, stand_ins, memo)
            elif not (callable(value) and hasattr(kind, name)):
                vars(twin)[name] = copy.deepcopy(value, memo)
    return twin


def _state(state: Any, stand_ins: dict[int, torch.Tensor], memo: dict[int, Any]) -> Any:
    """The state of the parameters that have a stand-in, and whatever is kept under other keys than parameters."""
    twin = copy.copy(state)
    twin.clear()
    for key, value in state.items():
        if id(key) in stand_ins or not isinstance(key, torch.Tensor):
            twin[copy.deepcopy(key, memo)] = copy.deepcopy(value, memo)
    return twin


class _Copying(TorchFunctionMode):
    """Makes `copy.deepcopy` return stand-ins for tensors."""

    def __init__(self, stand_ins: StandIns) -> None:
        super().__init__()
        self._stand_ins = stand_ins

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = self._stand_ins.of_held(tensor)
            return memo[id(tensor)]
        if func is torch.Tensor.data.__get__:  # type: ignore[attr-defined]  # how a parameter is copied
            return self._stand_ins.of_held(args[0]).detach()
        return func(*args, **(kwargs or {}))
