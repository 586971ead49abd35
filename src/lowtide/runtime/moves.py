"""What generated code calls where its schedule offloads, prefetches, waits, or computes on the host.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.device.calls import pick
from lowtide.device.copies import Happening
from lowtide.device.engines import Engines, HostCopy, Transfer
from lowtide.errors import BackwardError, StorageError
from lowtide.ir.geometry import Geometry
from lowtide.units import format_B

_HOST_SAVED = "_lowtide_host_saved"


@dataclass(frozen=True)
class HostOutput:
    """One result that a run on the host keeps.

    Arguments:
        path: where it is in what the operator returns.
        geometry, size_B: of the value.
        takes: which of the values that are read has its bytes taken over; None for bytes of its own.
    """

    path: tuple[int, ...]
    geometry: Geometry
    size_B: int
    takes: int | None = None


class Moves:
    """The transfers of one segment.

    Arguments:
        engines: that carry them out.
        names: per statement, what it transfers, for messages.
    """

    def __init__(self, engines: Engines, names: Sequence[str]) -> None:
        self._engines, self._names = engines, tuple(names)
        self.wait = engines.wait
        self.finish = engines.finish
        self.drain = engines.drain

    def send(self, tensor: torch.Tensor, size_B: int, at: int, after: Sequence[Transfer] = ()) -> HostCopy:
        """Begins to copy a value into the host pool.

        Arguments:
            size_B: of the value.
            at: number of the statement.
            after: what has to have happened before.

        Raises:
            torch.OutOfMemoryError: if the host budget is spent; nothing has been changed.
        """
        base, offset = _whole(tensor, size_B)
        host = self._place(size_B, at, tensor.dtype, tensor.shape, tensor.stride(), offset)
        return self._sent(host, base, size_B, at, tensor.device, after)

    def send_back(
        self, tensor: torch.Tensor, lender: HostCopy, size_B: int, at: int, after: Sequence[Transfer] = ()
    ) -> HostCopy:
        """Begins to copy a value into the host storage of the one that it replaces."""
        base, _ = _whole(tensor, size_B)
        return self._sent(lender.tensor, base, size_B, at, tensor.device, (lender.written, *after), shown=True)

    def fetch(
        self, copy: HostCopy, size_B: int, at: int, after: Sequence[Transfer] = ()
    ) -> tuple[torch.Tensor, Transfer]:
        """Takes bytes on the device and begins to copy a value there."""
        host = copy.tensor
        base, offset = _whole(host, size_B)
        tensor = _fresh(host, size_B, offset, copy.device)
        target, _ = _whole(tensor, size_B)
        self._engines.latest = tensor  # an interrupt may strike before the caller has it
        done = self._engines.lanes[1].submit(target, base, size_B, _pending((copy.written, *after)))
        return tensor, self._begun(done, at)

    def run(
        self,
        call: Callable[..., Any],
        copies: Sequence[HostCopy],
        outputs: Sequence[HostOutput],
        at: int,
        after: Sequence[Transfer] = (),
    ) -> tuple[HostCopy, ...]:
        """Begins to run an operator in host memory.

        Arguments:
            call: on the tensors of `copies`.
            outputs: what is kept of it.
        """
        given = [copy.tensor for copy in copies]
        targets = [self._target(output, given, at) for output in outputs]

        def work() -> None:
            results = call(*given)
            for output, target in zip(outputs, targets, strict=True):
                result = pick(results, output.path)
                if result.data_ptr() != target.data_ptr():
                    target.copy_(result)

        on_device = self._engines.on_device()
        done = self._engines.host.submit(work, [*_pending((*(copy.written for copy in copies), *after)), *on_device])
        transfer = self._begun(done, at)
        devices = (torch.device(output.geometry.device) for output in outputs)
        return tuple(HostCopy(t, transfer, device) for t, device in zip(targets, devices, strict=True))

    def arrived(self, tensor: torch.Tensor, device: str) -> HostCopy:
        """A value that is in host memory already: host-resident, or offloaded by an earlier segment."""
        return HostCopy(tensor, Transfer(None, ""), torch.device(device))

    def _target(self, output: HostOutput, given: Sequence[torch.Tensor], at: int) -> torch.Tensor:
        if output.takes is not None:
            return given[output.takes]
        geometry = output.geometry
        dtype = getattr(torch, geometry.dtype)
        return self._place(output.size_B, at, dtype, geometry.shape, geometry.stride, geometry.offset)

    def _place(
        self, size_B: int, at: int, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], offset: int
    ) -> torch.Tensor:
        """A tensor in so many bytes of the host pool."""
        pool = self._engines.pool
        try:
            return pool.empty((size_B // dtype.itemsize,), dtype).as_strided(tuple(shape), tuple(stride), offset)
        except torch.OutOfMemoryError as error:
            now = pool.stats()
            raise torch.OutOfMemoryError(
                f"lowtide: {self._names[at]} ({format_B(size_B)}) was to wait on the host, whose budget of "
                f"{format_B(now.budget_B)} has {format_B(now.in_use_B)} in use and no hole larger than "
                f"{format_B(now.largest_hole_B)}. Forwards whose backwards have not run hold what they offloaded: run "
                "each backward, or drop its loss, before the next forward; or raise host_budget."
            ) from error

    def _sent(
        self,
        host: torch.Tensor,
        base: torch.Tensor,
        size_B: int,
        at: int,
        device: torch.device,
        after: Sequence[Transfer],
        *,
        shown: bool = False,
    ) -> HostCopy:
        target, _ = _whole(host, size_B)
        done = self._engines.lanes[0].submit(target, base, size_B, _pending(after))
        return HostCopy(host, self._begun(done, at, shown=shown), device)

    def _begun(self, done: Happening, at: int, *, shown: bool = False) -> Transfer:
        transfer = Transfer(done, self._names[at], shown=shown)
        self._engines.begin(transfer)
        return transfer


def with_host_saved(token: torch.Tensor, copies: tuple[HostCopy, ...]) -> torch.Tensor:
    """The token of a forward, with what its backward needs and no slot is for."""
    own = token.detach()
    own._lowtide_plan = token._lowtide_plan  # type: ignore[attr-defined]
    setattr(own, _HOST_SAVED, copies)
    return own


def host_saved_of(arguments: Sequence[Any]) -> tuple[HostCopy, ...]:
    """What `with_host_saved` gave to the token among a backward's arguments.

    Raises:
        BackwardError: if it was lost.
    """
    for argument in arguments:
        found = getattr(argument, _HOST_SAVED, None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    raise BackwardError(
        "what this forward offloaded was lost before its backward: a saved-tensor hook replaced "
        "lowtide's token. Train without saved-tensor hooks around the model, or without host_budget."
    )


def _pending(transfers: Sequence[Transfer]) -> list[Happening]:
    return [t.happening for t in transfers if t.happening is not None]


def _whole(tensor: torch.Tensor, size_B: int) -> tuple[torch.Tensor, int]:
    """A tensor that begins where a value's bytes begin, and how many elements later the value's first one is.

    Raises:
        StorageError: if there are fewer bytes than the value has.
    """
    storage, offset = tensor.untyped_storage(), int(tensor.storage_offset())
    if offset and storage.nbytes() == size_B:
        return tensor.as_strided((1,), (1,), 0), offset
    if offset * tensor.element_size() + size_B > storage.nbytes():
        raise StorageError(f"{size_B:,} B were to be copied of a storage that has {storage.nbytes():,} B")
    return tensor, 0


def _fresh(like: torch.Tensor, size_B: int, offset: int, device: torch.device) -> torch.Tensor:
    """A tensor of the same geometry in so many fresh bytes of a device: one allocation."""
    shape, stride = like.shape, like.stride()
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    if offset == 0 and extent * like.element_size() == size_B:
        return torch.empty_strided(shape, stride, dtype=like.dtype, device=device)
    block = torch.empty(size_B // like.element_size(), dtype=like.dtype, device=device)
    return block.as_strided(shape, stride, offset)
