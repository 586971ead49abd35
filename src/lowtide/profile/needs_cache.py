"""What optimizers need, on disk: torch's own ones, before their first step, by the geometry of their parameters.

Trying an optimizer of some hundred parameters takes a second, and a process that finds its plan on disk should not wait
for it. An optimizer of anybody else's may do something else tomorrow under the same name, so it is tried every time.

Units: `_B` bytes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import torch

import lowtide
from lowtide.device.fingerprint import fingerprint
from lowtide.device.storage import number_of_storage
from lowtide.ir.check_graph import MOST_B
from lowtide.ir.file_store import FileStore, cache_folder
from lowtide.profile.optimizer import OptimizerNeeds, optimizer_needs
from lowtide.profile.signature import geometry_of

_VERSION = 3
_MOST = 200  # files; the least recently used go
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class About(msgspec.Struct, frozen=True):
    """The first line of a file: of which optimizer it tells the needs."""

    signature: str


def needs_store(folder: Path | None = None) -> FileStore[About]:
    """The files.

    Arguments:
        folder: made when first written to; that of the measurements when None.
    """
    return FileStore(folder or cache_folder("profiles"), ".needs", "needs of optimizers", About, limit=_MOST)


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
    store, name = needs_store(folder), hashlib.sha256(f"{_VERSION} {signature}".encode()).hexdigest()[:16]
    known = _read(store, name, signature)
    if known is not None:
        return known
    needs = optimizer_needs(optimizer, alignment_B=alignment_B)
    if needs.method == "fake" and not needs.note:
        store.write(name, About(signature), msgspec.json.encode(needs))
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


def _read(store: FileStore[About], name: str, signature: str) -> OptimizerNeeds | None:
    """The needs in a file; None if there is none that is for this signature."""
    found = store.read(name)
    if found is None or found[0].signature != signature:
        return None
    try:
        needs = msgspec.json.decode(found[1], type=OptimizerNeeds)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        store.remove(name, str(error))
        return None
    return needs if _is_sound(needs) else None


def _is_sound(needs: OptimizerNeeds) -> bool:
    """Whether bytes are bytes: a file may hold anything."""
    sizes_B = (needs.state_B, needs.temporaries_B, *needs.state_sizes_B)
    return all(0 <= size_B <= MOST_B for size_B in sizes_B) and needs.state_B == sum(needs.state_sizes_B)
