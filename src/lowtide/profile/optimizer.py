"""What an optimizer will need, known before its first step: bytes of state, and of temporaries while it steps.

A twin of the optimizer steps over fake parameters, which have no bytes, while every storage that it makes is counted.
Where its code cannot run on fake tensors, a twin steps over real stand-ins, one parameter at a time
(`optimizer_samples.py`). The optimizer itself, its parameters, gradients and hooks, and all generators are as they
are.

Units: `_B` bytes.
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec
import torch

from lowtide.device.fake_tensors import fake_mode, fake_tensor, optimizers_take_fakes_for_real
from lowtide.device.optimizer_hooks import without_optimizer_hooks
from lowtide.device.storage import number_of_storage
from lowtide.errors import LowtideError, UnsupportedOperator
from lowtide.profile.lbfgs import lbfgs_needs
from lowtide.profile.live_storages import LiveStorages
from lowtide.profile.optimizer_samples import sampled_needs
from lowtide.profile.recording import isolation
from lowtide.profile.trial import Counted, Trial, held_tensors
from lowtide.profile.workspaces import Workspaces

_MOST_STEPS = 8  # for state that still grows


class OptimizerNeeds(msgspec.Struct, frozen=True):
    """Bytes that an optimizer holds between steps, and more of them while it steps.

    Arguments:
        state_B: of all state once every parameter with a gradient has been stepped; the sum of the sizes.
        state_sizes_B: exact bytes of the storages that make up the state, those that exist already first.
        temporaries_B: upper bound of what a step holds beyond parameters, gradients and state.
        method: how it was found out: on fake tensors, on samples of the parameters, or not at all (then only the
            state that exists already is counted).
        note: what people should know about these figures; empty when there is nothing.
    """

    state_B: int
    state_sizes_B: tuple[int, ...]
    temporaries_B: int
    method: Literal["fake", "sampled", "unknown"]
    note: str = ""


def joined_needs(needs: Sequence[OptimizerNeeds]) -> OptimizerNeeds | None:
    """What several optimizers take that step one after another: all of their state, the most temporaries of one.

    Returns: None if there are none.
    """
    if len(needs) < 2:
        return needs[0] if needs else None
    return OptimizerNeeds(
        state_B=sum(n.state_B for n in needs),
        state_sizes_B=tuple(size_B for n in needs for size_B in n.state_sizes_B),
        temporaries_B=max(n.temporaries_B for n in needs),
        method=max((n.method for n in needs), key=("fake", "sampled", "unknown").index),
        note="; ".join(dict.fromkeys(n.note for n in needs if n.note)),
    )


def optimizer_needs(
    optimizer: torch.optim.Optimizer,
    *,
    with_grad: Iterable[torch.Tensor] | None = None,
    device: str | None = None,
    alignment_B: int = 1,
) -> OptimizerNeeds:
    """Finds out what an optimizer will hold, and what its steps will need, without stepping it.

    Arguments:
        optimizer: never stepped, or stepped already, or with loaded state; it is not changed.
        with_grad: the parameters that get gradients; all that require them when None. Gradients that exist count
            in any case.
        device: whose bytes count, `"cpu"` or `"cuda"`; where the first parameter is when None. Parameters on the meta
            device count as the CPU's.
        alignment_B: temporaries count as the next multiple of it, one by one.

    Returns: the needs, or what is known of them with the reason. Costs about a tenth of a millisecond per operator
        of three steps, and, for operators with a workspace, one run of each distinct one.

    Raises:
        LowtideError: if a torch profiler is running and something has to be measured.
    """
    memory = device or _device(optimizer)
    refusal = _refusal(optimizer)
    if refusal:
        return _unknown(optimizer, memory, refusal)
    if isinstance(optimizer, torch.optim.LBFGS):
        return _needs(lbfgs_needs(optimizer), "sampled")
    gradients = _gradients(optimizer, with_grad)
    on_fakes = _tried(lambda: _on_fakes(optimizer, gradients, memory, alignment_B))
    if isinstance(on_fakes, Counted):
        return _needs(on_fakes, "fake")
    sampled = _tried(lambda: sampled_needs(optimizer, gradients, memory, alignment_B))
    if isinstance(sampled, Counted):
        note = f"measured on one parameter of each geometry, since without bytes: {_reason(on_fakes)}"
        return _needs(msgspec.structs.replace(sampled, note=note), "sampled")
    return _unknown(optimizer, memory, f"a trial step of {type(optimizer).__name__} failed: {_reason(sampled)}")


def _tried(trial: Callable[[], Counted]) -> Counted | Exception:
    """What a trial finds, or what it raised: it runs the optimizer's own code, which may raise anything.

    Raises:
        LowtideError: lowtide's own, that the optimizer is not the reason of.
    """
    try:
        return trial()
    except Exception as error:
        if isinstance(error, LowtideError) and not isinstance(error, UnsupportedOperator):
            raise
        return error


def _on_fakes(
    optimizer: torch.optim.Optimizer, gradients: Mapping[int, torch.Tensor], device: str, alignment_B: int
) -> Counted:
    """Tries the steps on tensors without bytes; where they ask for a value, both with true and with false."""
    workspaces = Workspaces(device)
    found: list[Counted] = []
    failures: list[Exception] = []
    for answer in (True, False):
        live = LiveStorages(device, workspaces.inside_B, alignment_B, answer)
        tried = _tried(functools.partial(_counted, optimizer, gradients, live))
        if isinstance(tried, Counted):
            found.append(tried)
        else:
            failures.append(tried)
        if not live.answers:
            break
    if not found:
        raise failures[0]
    largest = max(found, key=lambda counted: sum(counted.sizes_B))
    notes = ["its step depends on the contents of tensors, which were made up"] if live.answers else []
    notes += [largest.note] if largest.note else []
    notes += [f"what {op} holds inside is not counted ({why})" for op, why in workspaces.failed.items()]
    temporaries_B = max(counted.temporaries_B for counted in found)
    return Counted(largest.sizes_B, temporaries_B, "; ".join(notes))


def _counted(optimizer: torch.optim.Optimizer, gradients: Mapping[int, torch.Tensor], live: LiveStorages) -> Counted:
    """Steps until the state no longer grows, and once more as if it were late."""
    temporaries_B = 0
    with isolation(), without_optimizer_hooks(), fake_mode(), optimizers_take_fakes_for_real():
        trial = Trial(optimizer, optimizer.param_groups, gradients)
        with live:
            for tensor in (*trial.given, *trial.state):
                live.watch(tensor)
            sizes_B: tuple[int, ...] | None = None
            late = grows = False
            for _ in range(_MOST_STEPS):
                live.mark()
                trial.step()
                gc.collect(0)  # everything since the collector was stopped: what died in cycles is no state
                before_B, sizes_B = sizes_B, live.sizes_B(trial.given)
                temporaries_B = max(temporaries_B, live.peak_B - live.now_B)
                grows = sizes_B != before_B
                if late:
                    break
                if not grows:
                    trial.make_late()
                    late = True
    return Counted(sizes_B or (), temporaries_B, "its state still grows" if grows else "")


def _gradients(optimizer: torch.optim.Optimizer, with_grad: Iterable[torch.Tensor] | None) -> dict[int, torch.Tensor]:
    """What the gradient of each parameter looks like, by the parameter's identity: what it has, or the parameter."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    chosen = None if with_grad is None else {id(p) for p in with_grad}
    trained = [p for p in parameters if p.requires_grad and (chosen is None or id(p) in chosen)]
    gradients = {id(p): p for p in trained}
    gradients.update({id(p): p.grad for p in parameters if p.grad is not None})
    return gradients


def _refusal(optimizer: torch.optim.Optimizer) -> str:
    """Why the needs cannot be found out; empty when they may."""
    name = type(optimizer).__name__
    if "param_groups" not in vars(optimizer) or "state" not in vars(optimizer):
        return f"{name} keeps no parameters itself: name the optimizer that it wraps"
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    own = [p for p in parameters if type(p).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__]
    odd = {type(p).__name__ for p in own if not isinstance(p, fake_tensor())}
    if odd:
        return f"parameters of type {', '.join(sorted(odd))} have no geometry of their own"
    sparse = isinstance(optimizer, torch.optim.SparseAdam)
    if sparse or any(p.grad is not None and p.grad.layout is not torch.strided for p in parameters):
        return "the bytes of sparse gradients depend on data"
    if any(p.layout is not torch.strided for p in parameters):
        return "the bytes of sparse parameters depend on data"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "a differentiable step keeps its temporaries for autograd"
    if _wants_arguments(type(optimizer)) and not isinstance(optimizer, torch.optim.LBFGS):
        return f"the step of {name} wants a closure, whose bytes are the program's"
    return ""


def _wants_arguments(kind: type[torch.optim.Optimizer]) -> bool:
    named = list(inspect.signature(kind.step).parameters.values())[1:]
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in named)


def _device(optimizer: torch.optim.Optimizer) -> str:
    found = next((p.device.type for group in optimizer.param_groups for p in group["params"]), "cpu")
    return "cpu" if found == "meta" else found


def _needs(counted: Counted, method: Literal["fake", "sampled"]) -> OptimizerNeeds:
    sizes_B = counted.sizes_B
    return OptimizerNeeds(sum(sizes_B), sizes_B, counted.temporaries_B, method, counted.note)


def _unknown(optimizer: torch.optim.Optimizer, device: str, note: str) -> OptimizerNeeds:
    """The state that exists already."""
    held = [t for t in held_tensors(optimizer) if t.device.type == device and t.layout is torch.strided]
    storages = {number_of_storage(t): t.untyped_storage().nbytes() for t in held}
    sizes_B = tuple(size_B for size_B in storages.values() if size_B)
    return OptimizerNeeds(sum(sizes_B), sizes_B, 0, "unknown", note)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
