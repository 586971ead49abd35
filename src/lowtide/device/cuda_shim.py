"""The shim for GPU memory: a module of its own, compiled on first use by the same means as the CPU's.

It needs torch's C++ headers and a compiler, but neither CUDA's headers nor its compiler; the runtime's functions are
those of the library that torch has loaded. `LOWTIDE_SHIM=0` keeps it out too. Not run on a GPU yet: it was built
against torch with and without CUDA, and run on a simulated device.
"""

from __future__ import annotations

import os
import threading
from typing import cast

from lowtide.device import shim_build
from lowtide.device.cuda_module import CudaModule
from lowtide.errors import ShimUnavailable

_NAME = "_lowtide_cuda"
_lock = threading.Lock()
_module: CudaModule | None = None


def load() -> CudaModule:
    """The compiled module; the first call may take about ten seconds, a later process milliseconds.

    Raises:
        ShimUnavailable: with the cause and the remedy.
    """
    global _module
    with _lock:
        if _module is None:
            _module = _find()
        return _module


def loaded() -> CudaModule | None:
    """The module if this process has loaded it already; nothing is built."""
    return _module


def _find() -> CudaModule:
    if os.environ.get("LOWTIDE_SHIM", "") == "0":
        raise ShimUnavailable("LOWTIDE_SHIM=0 keeps lowtide's memory arena out: unset it to have budgets enforced")
    shim_build.supported()
    path = shim_build.find_or_build(kit=shim_build.CUDA)
    try:
        return cast(CudaModule, shim_build.load_file(path, _NAME))
    except ImportError as error:
        path.unlink(missing_ok=True)
        raise ShimUnavailable(
            f"lowtide's memory arena for GPUs was built but cannot be loaded ({error}): run again to have it built "
            "anew, or set LOWTIDE_CACHE_DIR to a folder from which code may be loaded"
        ) from error
