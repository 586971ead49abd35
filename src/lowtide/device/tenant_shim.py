"""Loads the compiled module that keeps arenas inside torch's CUDA allocator, and puts it in front of that.

It can be done at any time: the module hands on to torch whatever no arena is asked for, so that tensors from before,
statistics and CUDA graphs are as ever. It stays for the rest of the process. `LOWTIDE_SHIM=0` keeps it out. Not run on
a GPU yet: compiled against the headers of torch 2.11 to 2.14, and run on a simulated GPU.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch

from lowtide.device import shim_build
from lowtide.device.tenant_module import TenantModule
from lowtide.errors import ShimUnavailable

_NAME = "_lowtide_tenant"
_lock = threading.RLock()
_module: TenantModule | None = None
_refusal: str | None = None  # why it cannot be loaded in this process


def load() -> TenantModule:
    """The compiled module in front of torch's CUDA allocator; the first call may take half a minute.

    Raises:
        ShimUnavailable: with the cause and the remedy.
    """
    global _refusal
    with _lock:
        if _module is not None:
            return _module
        if _refusal is not None:
            raise ShimUnavailable(_refusal)
        try:
            if torch.version.cuda is None:
                raise ShimUnavailable(f"torch {torch.__version__} is built without CUDA")
            torch.cuda.init()  # type: ignore[no-untyped-call]
            return load_with("", [])
        except ShimUnavailable as error:
            _refusal = str(error)
            raise


def load_with(runtime: str, libraries: Sequence[Path]) -> TenantModule:
    """The same with a CUDA runtime that is named, and libraries of torch's in other folders.

    Arguments:
        runtime: path of the library; empty for what torch has loaded.
        libraries: folders.

    Raises:
        ShimUnavailable: with the cause and the remedy.
    """
    global _module
    with _lock:
        if _module is None:
            if os.environ.get("LOWTIDE_SHIM", "") == "0":
                raise ShimUnavailable(
                    "LOWTIDE_SHIM=0 keeps lowtide's memory arena out: unset it to have budgets enforced"
                )
            shim_build.supported()
            path = shim_build.find_or_build(kit=shim_build.TENANT, libraries=libraries)
            try:
                module = cast(TenantModule, shim_build.load_file(path, _NAME))
                module.use_runtime(runtime)
                module.install()
            except ImportError as error:
                path.unlink(missing_ok=True)
                raise ShimUnavailable(
                    f"lowtide's memory arena for GPUs was built but cannot be loaded ({error}): start anew to have it "
                    "built once more, or set LOWTIDE_CACHE_DIR to a folder from which code may be loaded"
                ) from error
            except RuntimeError as error:
                raise ShimUnavailable(f"{error}: budgets on a GPU are capped") from error
            _module = module
        return _module


def loaded() -> TenantModule | None:
    """The module if this process has loaded it already; nothing is built."""
    return _module


def refusal() -> str:
    """Why `load` does not work here; empty if it does. Builds the module if need be."""
    try:
        load()
    except ShimUnavailable as error:
        return str(error)
    return ""
