"""An optimizer's needs, measured on one of its parameters at a time: for code that does not run on fake tensors.

State is exact where every parameter has its own. Bytes in use meanwhile: one parameter's, with gradient, state and
temporaries. Units: `_B` bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import torch

from lowtide.device.observer import AllocationEvent, observe
from lowtide.device.optimizer_hooks import without_optimizer_hooks
from lowtide.errors import UnsupportedOperator
from lowtide.profile.live_storages import aligned_B, scalars_B
from lowtide.profile.recording import isolation
from lowtide.profile.signature import geometry_of
from lowtide.profile.trial import Counted, Trial

_TELLING_B = 1_024


class _Member(NamedTuple):
    """A parameter with a gradient, and where it is."""

    group: int
    parameter: torch.Tensor


def sampled_needs(
    optimizer: torch.optim.Optimizer, gradients: Mapping[int, torch.Tensor], device: str, alignment_B: int
) -> Counted:
    """Steps a twin over real stand-ins, once for every distinct geometry of a parameter.

    Arguments:
        optimizer: is not changed.
        gradients: a tensor like the gradient of each parameter that has one, by the parameter's identity.
        device: whose bytes count, `"cpu"` or `"cuda"`.
        alignment_B: every temporary counts as the next multiple of it.

    Returns: what was measured, scaled to all parameters.

    Raises:
        UnsupportedOperator: if the step would talk to other processes.
        Exception: whatever the optimizer raises.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        raise UnsupportedOperator("a step on stand-ins could wait for other processes")
    alike: dict[object, list[_Member]] = {}
    for index, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            if id(p) in gradients:
                kind = (index, _kind(optimizer, p, gradients[id(p)]))
                alike.setdefault(kind, []).append(_Member(index, p))
    with isolation(), without_optimizer_hooks():
        found = {
            kind: _measured(optimizer, members[:1], gradients, device, alignment_B) for kind, members in alike.items()
        }
        sizes_B = [size_B for kind, members in alike.items() for size_B in found[kind].sizes_B * len(members)]
        each_B = [counted.temporaries_B for kind, counted in found.items() for _ in alike[kind]]
        joint = _are_joint(optimizer, alike, found, gradients, device, alignment_B)
    temporaries_B = sum(each_B) if joint else max(each_B, default=0)
    return Counted(tuple(sizes_B), temporaries_B + scalars_B(device, alignment_B))


def _kind(optimizer: torch.optim.Optimizer, parameter: torch.Tensor, gradient: torch.Tensor) -> object:
    state = optimizer.state.get(parameter, {})
    items = state.items() if isinstance(state, dict) else ()
    known = tuple((str(k), geometry_of(v)) for k, v in items if isinstance(v, torch.Tensor))
    return geometry_of(parameter), geometry_of(gradient), known


def _measured(
    optimizer: torch.optim.Optimizer,
    members: list[_Member],
    gradients: Mapping[int, torch.Tensor],
    device: str,
    alignment_B: int,
) -> Counted:
    """Three steps over the given parameters, the last of them a late one."""
    chosen = {m.group: [n.parameter for n in members if n.group == m.group] for m in members}
    groups = [{**optimizer.param_groups[i], "params": chosen[i]} for i in sorted(chosen)]
    with observe(device) as seen:
        trial = Trial(optimizer, groups, gradients)
        trial.step()
        trial.step()
        trial.make_late()
        trial.step()
        given = {t.untyped_storage().data_ptr() for t in trial.given}
    live, peak_B = _levels(seen.events, alignment_B)
    sizes_B = tuple(size_B for address, size_B in live.items() if address not in given)
    del trial
    held_B = sum(aligned_B(size_B, alignment_B) for size_B in live.values())
    return Counted(sizes_B, peak_B - held_B)


def _levels(events: tuple[AllocationEvent, ...], alignment_B: int) -> tuple[dict[int, int], int]:
    """What lives at the end, bytes by address, and the most that lived at once."""
    live: dict[int, int] = {}
    now_B = peak_B = 0
    for event in events:
        if event.size_B > 0:
            live[event.address] = event.size_B
            now_B += aligned_B(event.size_B, alignment_B)
        else:
            now_B -= aligned_B(live.pop(event.address, 0), alignment_B)
        peak_B = max(peak_B, now_B)
    return live, peak_B


def _are_joint(
    optimizer: torch.optim.Optimizer,
    alike: Mapping[object, list[_Member]],
    found: Mapping[object, Counted],
    gradients: Mapping[int, torch.Tensor],
    device: str,
    alignment_B: int,
) -> bool:
    """Whether two parameters of a group, stepped together, need nearly as much as the sum of both; True if unknown.

    The two are small, but not so small that their temporaries are but a few numbers.
    """
    ranked = sorted(
        ((found[kind].temporaries_B, m) for kind, members in alike.items() for m in members), key=lambda entry: entry[0]
    )
    pairs = [(less_B, more_B, [a, b]) for (less_B, a), (more_B, b) in itertools.pairwise(ranked) if a.group == b.group]
    if not pairs:
        return len(ranked) > 1
    less_B, more_B, pair = next((entry for entry in pairs if entry[0] >= _TELLING_B), pairs[-1])
    return _measured(optimizer, pair, gradients, device, alignment_B).temporaries_B > more_B + less_B // 2
