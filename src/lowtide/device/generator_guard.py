"""Random generators as they were, whatever happens inside."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.device.arena import nothing_engaged


@dataclass(frozen=True, eq=False)
class GeneratorStates:
    """The states of torch's CPU generator, those of the CUDA devices in use, Python's and numpy's at one instant."""

    cpu: torch.Tensor
    devices: tuple[torch.Tensor, ...]
    python: Any
    numpy: Any

    @classmethod
    def now(cls) -> GeneratorStates:
        """Reads them."""
        numpy = sys.modules.get("numpy")
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return cls(
            torch.get_rng_state(),
            tuple(torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())) if in_use else (),
            random.getstate(),
            None if numpy is None else numpy.random.get_state(),
        )

    def put_back(self) -> None:
        """Sets the generators to these states."""
        torch.set_rng_state(self.cpu)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        for index, state in enumerate(self.devices):
            torch.cuda.set_rng_state(state, index)


@dataclass(frozen=True)
class TorchGenerators:
    """The states of torch's CPU generator and those of the CUDA devices in use, outside the memory of any device."""

    states: tuple[bytes, ...]

    @classmethod
    def now(cls) -> TorchGenerators:
        """Reads them."""
        with nothing_engaged():
            in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            devices = range(torch.cuda.device_count()) if in_use else ()
            states = (torch.get_rng_state(), *(torch.cuda.get_rng_state(i) for i in devices))
            return cls(tuple(s.numpy().tobytes() for s in states))

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Inside, generators go on from these states; behind it, from where they were."""
        now = TorchGenerators.now()
        self._put_back()
        try:
            yield
        finally:
            now._put_back()

    def _put_back(self) -> None:
        with nothing_engaged():
            cpu, *devices = (torch.frombuffer(bytearray(s), dtype=torch.uint8) for s in self.states)
            torch.set_rng_state(cpu)
            for index, state in enumerate(devices):
                torch.cuda.set_rng_state(state, index)


@contextlib.contextmanager
def unchanged_generators() -> Iterator[None]:
    """Restores torch's CPU generator, those of the CUDA devices in use, Python's and numpy's, at exit."""
    states = GeneratorStates.now()
    try:
        yield
    finally:
        states.put_back()
