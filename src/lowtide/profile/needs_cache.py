"""What optimizers need, on disk: torch's own ones, before their first step, by the geometry of their parameters.

Trying an optimizer of some hundred parameters takes a second, and a process that finds its plan on disk should not wait
for it. An optimizer of anybody else's may do something else tomorrow under the same name, so it is tried every time.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import tempfile
from pathlib import Path

import msgspec
import torch

import lowtide
from lowtide.device.fingerprint import fingerprint
from lowtide.device.storage import number_of_storage
from lowtide.errors import PlanFileError
from lowtide.ir.check_graph import MOST_B
from lowtide.ir.sealed import sealed, unsealed
from lowtide.profile.cache import default_folder
from lowtide.profile.optimizer import OptimizerNeeds, optimizer_needs
from lowtide.profile.signature import geometry_of

_LOG = logging.getLogger("lowtide")
_VERSION = 2
_MOST = 200  # files; the least recently used go
_SUFFIX = ".needs"
_NAME = re.compile(r"[0-9a-f]{16}")
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _File(msgspec.Struct, frozen=True):
    """The content of one file."""

    version: int
    signature: str
    needs: OptimizerNeeds


def known_needs(
    optimizer: torch.optim.Optimizer, *, alignment_B: int = 1, folder: Path | None = None
) -> OptimizerNeeds:
    """The same as `optimizer_needs`, from the disk where it was found out before.

    Arguments:
        folder: made when first written to; that of the measurements when None.
    """
    signature = signature_of(optimizer, alignment_B)
    if signature is None:
        return optimizer_needs(optimizer, alignment_B=alignment_B)
    name = hashlib.sha256(f"{_VERSION} {signature}".encode()).hexdigest()[:16]
    path = (folder or default_folder()) / f"{name}{_SUFFIX}"
    known = _read(path, signature)
    if known is not None:
        return known
    needs = optimizer_needs(optimizer, alignment_B=alignment_B)
    if needs.method == "fake" and not needs.note:
        _write(path, _File(_VERSION, signature, needs))
    return needs


def signature_of(optimizer: torch.optim.Optimizer, alignment_B: int) -> str | None:
    """Everything on which the needs depend, as text; None for an optimizer whose needs are not kept.

    Kept are those of torch's own classes, as they are made: without state, gradients, or methods put on them.
    """
    kind = type(optimizer)
    groups = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"]]
    if not kind.__module__.startswith("torch.optim.") or optimizer.state or "step" in vars(optimizer):
        return None
    if any(type(p) not in _PLAIN or p.layout is not torch.strided or p.grad is not None for p in parameters):
        return None
    options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    if any(isinstance(v, torch.Tensor) for group in options for v in group.values()):
        return None
    storages: dict[int, int] = {}
    shared = [storages.setdefault(number_of_storage(p), len(storages)) for p in parameters]
    of_parameters = [(geometry_of(p), p.untyped_storage().nbytes(), p.requires_grad) for p in parameters]
    counts = [len(group["params"]) for group in groups]
    device = next((p.device.type for p in parameters), "cpu")
    place = f"{fingerprint('cuda' if device == 'cuda' else 'cpu').key} {lowtide.__version__}"
    facts = (place, kind.__module__, kind.__qualname__, repr(options), counts, of_parameters, shared, alignment_B)
    return msgspec.json.encode(facts).decode()


def files(folder: Path | None = None) -> list[Path]:
    """The files there are, least recently used first."""
    found = [p for p in (folder or default_folder()).glob(f"*{_SUFFIX}") if _NAME.fullmatch(p.stem)]
    with contextlib.suppress(FileNotFoundError):  # another process clears
        found.sort(key=lambda p: p.stat().st_mtime)
    return found


def _read(path: Path, signature: str) -> OptimizerNeeds | None:
    """The needs in a file; None if there is none that is for this signature."""
    try:
        file = unsealed(path.read_bytes(), _File)
    except FileNotFoundError:
        return None
    except (OSError, PlanFileError) as error:
        _LOG.warning("what an optimizer needs cannot be read from %s and is found out again: %s", path, str(error))
        return None
    if (file.version, file.signature) != (_VERSION, signature) or not _is_sound(file.needs):
        return None
    with contextlib.suppress(OSError):  # a folder that may be read only
        os.utime(path)
    return file.needs


def _is_sound(needs: OptimizerNeeds) -> bool:
    """Whether bytes are bytes: a file may hold anything."""
    sizes_B = (needs.state_B, needs.temporaries_B, *needs.state_sizes_B)
    return all(0 <= size_B <= MOST_B for size_B in sizes_B) and needs.state_B == sum(needs.state_sizes_B)


def _write(path: Path, file: _File) -> None:
    """Replaces a file in one step. A disk that cannot be written to is a line in the log, not an error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=path.stem, suffix=".tmp", dir=path.parent)
        try:
            with open(handle, "wb") as unfinished:
                unfinished.write(sealed(file))
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
        for old in files(path.parent)[:-_MOST]:
            old.unlink(missing_ok=True)
    except OSError as error:
        _LOG.warning("what an optimizer needs could not be saved to %s: %s", path, str(error))
