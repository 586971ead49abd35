"""The shim: lowtide's own CPU allocator for torch, compiled on first use. Whether it is there, and if not, why.

`load()` is asked by whoever needs an arena; the first call compiles or finds the module, tries what it needs of torch,
and installs the allocator, which does nothing until an arena is engaged. Without it lowtide plans and runs all the
same, and says that its budgets are *accounted*. `LOWTIDE_SHIM=0` keeps it out.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import cast

import torch

from lowtide.device import shim_build
from lowtide.device.shim_module import ShimModule
from lowtide.device.shim_selftest import first_failure
from lowtide.errors import ShimUnavailable

_NAME = "_lowtide_shim"
_lock = threading.Lock()
_module: ShimModule | None = None
_refusal: str | None = None


def load() -> ShimModule:
    """The compiled module, ready for use. The first call may take about ten seconds, a later process milliseconds.

    Raises:
        ShimUnavailable: with the cause and the remedy; every later call in this process raises the same.
    """
    module = _module
    return module if module is not None else _load()


def _load() -> ShimModule:
    global _module, _refusal
    with _lock:
        if _module is not None:  # another thread was first
            return _module
        if _refusal is not None:
            raise ShimUnavailable(_refusal)
        try:
            _module = _find()
        except ShimUnavailable as error:
            _refusal = str(error)
            raise
        return _module


def loaded() -> ShimModule | None:
    """The module if this process has loaded it already; nothing is built."""
    return _module


def available() -> bool:
    """Whether `load` works here; builds the module if need be."""
    try:
        load()
    except ShimUnavailable:
        return False
    return True


def refusal() -> str:
    """Why `load` does not work here; empty if it does. Builds the module if need be."""
    try:
        load()
    except ShimUnavailable as error:
        return str(error)
    return ""


def _find() -> ShimModule:
    if os.environ.get("LOWTIDE_SHIM", "") == "0":
        raise ShimUnavailable("LOWTIDE_SHIM=0 keeps lowtide's memory arena out: unset it to have budgets enforced")
    shim_build.supported()
    path = shim_build.find_or_build()
    try:
        module = _import(path)
    except ImportError:  # intact, and still not loadable: made for other libraries of the same names
        path.unlink(missing_ok=True)
        module = _import_or_refuse(shim_build.find_or_build())
    try:
        module.install()
    except RuntimeError as error:
        raise ShimUnavailable(f"{error}: import it after lowtide, or not at all") from error
    if failure := first_failure(module):
        raise ShimUnavailable(
            f"torch {torch.__version__} does not behave as lowtide's memory arena needs: {failure}. "
            "Use a torch that lowtide was tested with, or set LOWTIDE_SHIM=0"
        )
    return module


def _import_or_refuse(path: Path) -> ShimModule:
    try:
        return _import(path)
    except ImportError as error:
        raise ShimUnavailable(
            f"lowtide's memory arena was built but cannot be loaded ({error}): set LOWTIDE_CACHE_DIR to a folder from "
            "which code may be loaded, or report this"
        ) from error


def _import(path: Path) -> ShimModule:
    return cast(ShimModule, shim_build.load_file(path, _NAME))
