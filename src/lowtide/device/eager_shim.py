"""Loads the compiled engine of `lowtide.eager`, which is built from `_shim/eager` on first use, or says why it cannot.

It is a module of its own, built when it is first asked for: it includes torch's dispatcher, which takes the compiler
longer than all of the shim, on which it builds (`_shim/gates.hpp`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from lowtide.device import shim, shim_build
from lowtide.device.dispatch_modes import no_modes
from lowtide.device.shim_module import SlabHandle
from lowtide.errors import ShimUnavailable

_NAME = "_lowtide_eager"
_lock = threading.Lock()
_found: tuple[EagerModule | None, str] | None = None

Said = tuple[list[str], list[str], str, bool]
"""What a schema does not say: arguments written, those spared in a recomputation, the one that must be true, draws."""


Entry = tuple[str, str, list[int], list[tuple[int, int]], list[tuple[int, int]], int]
"""What the program did; see `_shim/eager/diary.hpp`."""


class RuntimeHandle(Protocol):
    """One runtime; see `_shim/eager/runtime.hpp`. It raises torch.OutOfMemoryError where something does not fit."""

    def open(self) -> None: ...
    def close(self) -> None: ...
    def restore_all(self) -> int: ...
    def bring_in(self, tensor: torch.Tensor) -> None: ...
    def gradient_landed(self, gradient: torch.Tensor) -> None: ...
    def reach(self, tensor: torch.Tensor | torch.UntypedStorage, for_good: bool) -> None: ...
    def share(self, tensor: torch.Tensor | torch.UntypedStorage) -> None: ...
    def write(self, tensor: torch.Tensor | torch.UntypedStorage) -> None: ...
    def optimizer_began(self) -> None: ...
    def optimizer_ended(self) -> None: ...
    def take_diary(self) -> list[Entry]: ...
    def stats(self) -> dict[str, Any]: ...


class EagerModule(Protocol):
    """What the compiled module offers."""

    def Runtime(
        self,
        *,
        gates: object,
        slab: SlabHandle,
        policy: str,
        host_B: int,
        link_Bps: float,
        hidden: dict[str, Said],
        views: list[str],
        communicating: list[str],
        trusted: list[str],
        records: bool,
        met_parameter: Callable[[torch.Tensor], None],
        thrashes: Callable[[], None],
    ) -> RuntimeHandle: ...
    def intercept(self, runtime: RuntimeHandle | None) -> None: ...
    def objection(self) -> str: ...
    def register(self) -> None: ...


def load() -> EagerModule:
    """The compiled module, ready for use. The first call may take a minute, a later process milliseconds.

    Raises:
        ShimUnavailable: with the cause and the remedy; every later call in this process raises the same.
    """
    global _found
    with _lock:
        if _found is None:
            try:
                _found = (_find(), "")
            except ShimUnavailable as error:
                _found = (None, str(error))
        module, refusal = _found
    if module is None:
        raise ShimUnavailable(refusal)
    return module


def refusal() -> str:
    """Why `load` does not work here; empty if it does. Builds the module if need be."""
    try:
        load()
    except ShimUnavailable as error:
        return str(error)
    return ""


def _find() -> EagerModule:
    shim.load()
    if not _has_key():
        raise ShimUnavailable(
            f"torch {torch.__version__} has no dispatch key on which lowtide can see operators: "
            "use torch 2.11 to 2.13, which have one"
        )
    path = shim_build.find_or_build(kit=shim_build.EAGER)
    try:
        module = cast(EagerModule, shim_build.load_file(path, _NAME))
    except ImportError as error:
        raise ShimUnavailable(
            f"lowtide's eager runtime was built but cannot be loaded ({error}): "
            "use a torch that lowtide was tested with"
        ) from error
    if objection := module.objection():
        raise ShimUnavailable(f"{objection}: do without that library, or use a torch that lowtide was tested with")
    module.register()
    if failure := _first_failure(module):
        raise ShimUnavailable(
            f"torch {torch.__version__} does not behave as lowtide's eager runtime needs: {failure}. "
            "Use a torch that lowtide was tested with"
        )
    return module


def _has_key() -> bool:
    """Whether this torch knows the dispatch key; its Python does not list it."""
    header = Path(torch.__file__).parent / "include" / "c10" / "core" / "DispatchKey.h"
    return header.is_file() and "\n  Fake,\n" in header.read_text(encoding="utf-8")


def _first_failure(module: EagerModule) -> str:
    """What does not behave as expected, in words; empty if everything does."""
    slab = shim.load().Slab(2**20, 64, 0, 0, False, True)
    runtime = module.Runtime(
        gates=shim.load().gates,
        slab=slab,
        policy="lru",
        host_B=0,
        link_Bps=0.0,
        hidden={},
        views=[],
        communicating=[],
        trusted=["aten"],
        records=False,
        met_parameter=lambda _: None,
        thrashes=lambda: None,
    )
    with no_modes():
        try:
            seen, right = _trial(module, slab, runtime)
        finally:
            runtime.close()
            slab.close()
    if not seen:
        return "operators of a thread that asks for it are seen below autograd"
    return "" if right else "what was evicted is recomputed as it was"


def _trial(module: EagerModule, slab: SlabHandle, runtime: RuntimeHandle) -> tuple[bool, bool]:
    """A chain of tensors that does not fit; whether its operators were seen, and its values are right."""
    with torch.enable_grad():
        shim.load().engage(slab)
        runtime.open()
        module.intercept(runtime)
        try:
            x = torch.full((30000,), 0.5, device="cpu").requires_grad_()
            chain = [x.detach() + 1.0]
            for _ in range(12):
                chain.append(chain[-1] * 1.5)
            total = sum(float(t[7]) for t in chain)
            done = runtime.stats()
            del chain
        finally:
            module.intercept(None)
            shim.load().disengage(slab)
    return done["calls"] >= 13, done["evictions"] > 0 and total == sum(1.5 ** (i + 1) for i in range(13))
