"""A model without bytes (on the meta device, or made of fake tensors) that can be captured like any other.

Its tensors are replaced, as long as that takes, by real ones on the CPU that have an address and no memory: the
capture computes nothing, so nobody writes to them. A network of many gigabytes is looked at on a laptop so.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from lowtide.device.address_space import untouched
from lowtide.device.dispatch_modes import no_function_modes, no_modes
from lowtide.device.modules import tensor_tables
from lowtide.device.storage import number_of_storage
from lowtide.device.trees import mapped_tensors
from lowtide.errors import CaptureError
from lowtide.profile.signature import as_strided, geometry_of


def has_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor's contents exist; the storage of a fake one says that it is on the meta device."""
    if tensor.layout is not torch.strided:
        return tensor.device.type != "meta"
    return tensor.untyped_storage().device.type != "meta"


class StandIns:
    """Real tensors in the place of tensors without bytes: of the same geometry, sharing storages where those do."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.Tensor] = {}  # identity of the storage without bytes -> what stands for it
        self._made: dict[int, torch.Tensor] = {}
        self._originals: list[torch.Tensor] = []  # kept alive, so that no other object gets their identity

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The stand-in for a tensor; the tensor itself if it has bytes. That of a parameter is a parameter."""
        if has_bytes(tensor):
            return tensor
        if id(tensor) not in self._made:
            self._originals.append(tensor)
            self._made[id(tensor)] = self._make(tensor)
        return self._made[id(tensor)]

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided:
            raise CaptureError(f"a tensor without bytes, of layout {tensor.layout}: only strided ones can be stood for")
        geometry, storage = geometry_of(tensor, "cpu"), tensor.untyped_storage()
        number = number_of_storage(tensor)
        if number not in self._storages:
            size_B = max(storage.nbytes(), geometry.extent_B)
            self._storages[number] = untouched(-(-size_B // 16) * 16)  # whole elements of every dtype
        made = as_strided(self._storages[number].view(tensor.dtype), geometry)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(made, tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def with_addresses(model: torch.nn.Module, stand_ins: StandIns) -> Iterator[None]:
    """A context in which every tensor of a model has an address; afterwards the model has its own tensors again.

    Parameters, buffers and tensors that are plain attributes of its modules are replaced, where they have no bytes.
    Modes that would make new tensors without bytes (`FakeTensorMode`, `torch.device("meta")`) are off inside.

    Raises:
        CaptureError: if a part of the model lies on another device than the CPU, and another part nowhere.
    """
    changed: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    inside_meta = torch.get_default_device().type == "meta"
    with no_modes(), no_function_modes() if inside_meta else contextlib.nullcontext():
        try:
            for table, name, tensor in list(_tensors(model)):
                if not has_bytes(tensor):
                    changed.append((table, name, tensor))
                    table[name] = stand_ins.of(tensor)
            others = {t.device.type for _, _, t in _tensors(model)} - {"cpu"}
            if changed and others:
                raise CaptureError(
                    f"a part of this model has no bytes, and another part is on {', '.join(sorted(others))}: put all "
                    'of it on one device, or all of it on "meta"'
                )
            yield
        finally:
            for table, name, tensor in changed:
                table[name] = tensor


def in_place_of(inputs: Any, stand_ins: StandIns) -> Any:
    """Arguments of a call, nested as they are, with stand-ins for the tensors that have no bytes."""
    return mapped_tensors(stand_ins.of, inputs)


def _tensors(model: torch.nn.Module) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
    """Every tensor that a module of the model names, with where it is named."""
    for module in model.modules():
        for table in tensor_tables(module):
            for name, tensor in table.items():
                if isinstance(tensor, torch.Tensor):
                    yield table, name, tensor
