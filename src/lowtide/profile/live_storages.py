"""Which storages live while Python code runs, seen through the operators that it calls.

Works on fake tensors, which have no bytes, as well as on real ones. Units: `_B` bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch

from lowtide.device.dispatch_modes import OperatorMode
from lowtide.device.fake_tensors import no_fake_kernel_error, no_value_error
from lowtide.device.operators import READ_ONE, results_of
from lowtide.device.storage import number_of_storage
from lowtide.device.trees import tensors_in
from lowtide.errors import UnsupportedOperator

_MOST_ANSWERS = 100_000  # more of them mean a loop that waits for a value which will never come


class LiveStorages(OperatorMode):  # type: ignore[no-untyped-call]
    """A mode that knows the bytes of every storage that an operator returned, until the storage dies.

    Invariant: `now_B` is the sum over the storages seen and alive; `peak_B` is the most that it was since the last
    `mark`, with what each operator holds inside itself.

    Arguments:
        device: whose storages count, `"cpu"` or `"cuda"`; others are not seen.
        inside_B: most bytes, beyond those at its call, that an operator holds while it runs, results included.
        alignment_B: every storage counts as the next multiple of it.
        answer: what code is told that asks a tensor without contents for its value: True stands for true and one,
            False for false and a half.
    """

    def __init__(
        self, device: str, inside_B: Callable[[Any, Any, Any], int], alignment_B: int = 1, answer: bool = True
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.inside_B, self.alignment_B, self.answer = device, inside_B, alignment_B, answer
        self.now_B = self.peak_B = 0
        self.answers = 0  # values that were made up
        self._live: dict[int, tuple[weakref.ref[Any], int]] = {}  # identity of a storage -> it, its bytes

    def watch(self, tensor: torch.Tensor) -> None:
        """Counts a tensor's storage from now on, or its new size.

        Raises:
            UnsupportedOperator: for a tensor that does not lie in one storage.
        """
        if tensor.device.type != self.device:
            return
        if tensor.layout is not torch.strided:
            raise UnsupportedOperator(f"a tensor of layout {tensor.layout} does not lie in one storage")
        storage = tensor.untyped_storage()
        key, size_B = number_of_storage(tensor), storage.nbytes()
        known, before_B = self._live.get(key, (None, 0))
        self._live[key] = (known or weakref.ref(storage, self._forgetter(key)), size_B)
        self.now_B += self._aligned_B(size_B) - self._aligned_B(before_B)
        self.peak_B = max(self.peak_B, self.now_B)

    def mark(self) -> None:
        """Begins a new peak."""
        self.peak_B = self.now_B

    def sizes_B(self, excepted: Collection[torch.Tensor] = ()) -> tuple[int, ...]:
        """Exact bytes of the live storages, oldest first, without empty ones and those of the given tensors."""
        others = {number_of_storage(tensor) for tensor in excepted}
        return tuple(size_B for key, (_, size_B) in self._live.items() if size_B and key not in others)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        before_B = self.now_B
        try:
            result = func(*args, **kwargs)
        except no_value_error():
            return self._made_up(func, args)
        except no_fake_kernel_error():
            if results_of(func):
                raise
            result = None  # it only writes into what it was given
        for tensor in tensors_in(result):
            self.watch(tensor)
        numbers_B = scalars_B(self.device, self.alignment_B)
        self.peak_B = max(self.peak_B, self.now_B + numbers_B, before_B + self.inside_B(func, args, kwargs))
        return result

    def _made_up(self, func: Any, args: tuple[Any, ...]) -> Any:
        """A value for code that reads one scalar, or compares; for other operators that need contents there is none."""
        self.answers += 1
        if self.answers > _MOST_ANSWERS:
            raise UnsupportedOperator("it repeats something until a tensor has the value it waits for")
        if func is torch.ops.aten.equal.default:
            return self.answer
        if func is not READ_ONE:
            raise UnsupportedOperator(f"{func} needs the contents of its tensors")
        dtype = args[0].dtype
        if dtype is torch.bool:
            return self.answer
        number = 1.0 if self.answer else 0.5
        if dtype.is_complex:
            return complex(number)
        return number if dtype.is_floating_point else int(self.answer)

    def _aligned_B(self, size_B: int) -> int:
        return aligned_B(size_B, self.alignment_B)

    def _forgetter(self, key: int) -> Callable[[object], None]:
        def forget(_: object) -> None:
            _, size_B = self._live.pop(key)
            self.now_B -= self._aligned_B(size_B)

        return forget


def aligned_B(size_B: int, alignment_B: int) -> int:
    """The next multiple of the alignment."""
    return -(-size_B // alignment_B) * alignment_B


def scalars_B(device: str, alignment_B: int) -> int:
    """What one operator makes of its numbers: on the CPU a tensor of each, at most two, and once more for a cast."""
    return 4 * aligned_B(8, alignment_B) if device == "cpu" else 0
