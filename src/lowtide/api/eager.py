"""`lowtide.eager`: an unmodified training loop inside a budget, whatever its graph does from step to step."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from lowtide.arguments import path, shown, text
from lowtide.device import eager_shim
from lowtide.device.fingerprint import device_memory_B
from lowtide.device.openings import watched
from lowtide.device.storage import number_of_storage
from lowtide.eager_engine.eager_stats import EagerStats
from lowtide.eager_engine.policy_names import COPYING, OFFLOADING, policy_names
from lowtide.eager_engine.runtime import EagerRuntime
from lowtide.errors import BudgetError, BudgetWarning, EagerError, InfeasibleBudget, OptimizerError, ShimUnavailable
from lowtide.profile.bandwidth import bandwidth
from lowtide.profile.cache import ProfileCache
from lowtide.profile.optimizer import optimizer_needs
from lowtide.runtime.persistent_storages import state_tensors
from lowtide.session.eager_guard import place
from lowtide.session.options import HostBudget, Rate, offload_options
from lowtide.units import Budget, format_B, parse_budget

Models = torch.nn.Module | Iterable[torch.nn.Module] | None
Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None


class Eager:
    """A context in which every CPU tensor of the calling thread counts against a budget. Made by `eager`.

    It may be entered again after it was left: budget, statistics and what the policy has learnt go on.
    """

    def __init__(
        self, runtime: EagerRuntime, models: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]
    ) -> None:
        self.runtime = runtime
        self._models = models
        self._optimizers = optimizers
        self._open: contextlib.ExitStack | None = None
        self._fails = False

    def stats(self) -> EagerStats:
        """The figures so far: bytes, evictions, recomputations."""
        return self.runtime.stats()

    def __enter__(self) -> Eager:
        """Opens it.

        Raises:
            EagerError: if one is open already.
            InfeasibleBudget: if the models and the optimizers that were named need more for their persistent tensors.
        """
        self._refuse_hopeless()
        place.take(self)
        with contextlib.ExitStack() as stack:
            stack.callback(place.leave)
            self.runtime.open()
            stack.callback(self._close)
            runtime = self.runtime
            stack.enter_context(watched(runtime.reach, runtime.share, runtime.write, runtime.unseen))
            for hook in self._optimizer_hooks():
                stack.callback(hook.remove)
            self.runtime.bring_in(self._tensors())
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Recomputes whatever is alive and ends the budget; a BudgetWarning says what did not fit inside it."""
        stack, self._open = self._open, None
        if stack is None or place.context is not self:
            raise EagerError("this context of lowtide.eager is not open")
        if place.process != os.getpid():  # a forked child leaves what its parent opened
            return
        if not place.is_here:
            self._open = stack
            raise EagerError("lowtide.eager was opened in another thread: leave it there")
        self._fails = kind is not None
        stack.close()

    def _close(self) -> None:
        outside_B = self.runtime.close()
        if outside_B and not self._fails:  # else the error says what matters, and its traceback keeps tensors alive
            warnings.warn(
                f"when lowtide.eager was left, {format_B(outside_B)} of evicted tensors that are still alive "
                "did not fit into the budget and lie outside it now. Free outputs that are no longer needed before it "
                "ends.",
                BudgetWarning,
                stacklevel=4,
            )

    def _refuse_hopeless(self) -> None:
        """Raises:
        InfeasibleBudget: if persistent tensors take more than the budget, or would after the first step.
        """
        budget_B, sizes_B = self.stats().budget_B, _sizes_B(self._tensors())
        gradients = [p for model in self._models for p in model.parameters() if p.requires_grad]
        state_B = sum(optimizer_needs(optimizer).state_B for optimizer in self._optimizers)
        now_B = _sizes_B(t for optimizer in self._optimizers for t in state_tensors(optimizer))
        gradients_B = sum(p.nbytes for p in gradients)
        need_B = sizes_B - now_B + state_B + gradients_B
        if need_B > budget_B:
            raise InfeasibleBudget(
                f"a budget of {format_B(budget_B)} is too small for what persists: parameters and buffers "
                f"take {format_B(sizes_B - now_B)}, gradients {format_B(gradients_B)}, the optimizer's state "
                f"{format_B(state_B)}. Nothing has been changed. Raise the budget.",
                budget_B=budget_B,
                floor_B=need_B,
            )

    def _tensors(self) -> Iterator[Tensor]:
        for model in self._models:
            yield from model.parameters()
            yield from model.buffers()
        for optimizer in self._optimizers:
            yield from state_tensors(optimizer)

    def _optimizer_hooks(self) -> list[RemovableHandle]:
        owner = threading.get_ident()

        def began(*_: Any) -> None:
            if threading.get_ident() == owner:
                self.runtime.optimizer_began()

        def ended(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if threading.get_ident() == owner:
                self.runtime.optimizer_ended(state_tensors(optimizer))

        return [register_optimizer_step_pre_hook(began), register_optimizer_step_post_hook(ended)]


def _sizes_B(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages of tensors, each once."""
    found = {number_of_storage(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(found.values())


def _leave_child() -> None:
    """A forked process, a data loader's worker, runs as if there were no context."""
    if isinstance(place.context, Eager):
        place.context.runtime.leave_child()
        place.leave()


os.register_at_fork(after_in_child=_leave_child)


def eager(
    budget: int | str | Budget,
    *,
    policy: str = "tide-memory",
    host_budget: HostBudget = None,
    link: Rate = None,
    model: Models = None,
    optimizer: Optimizers = None,
    record: str | Path | None = None,
) -> Eager:
    """A context in which a training loop, unmodified, keeps within a budget.

    Inside, every tensor of the calling thread lies in one arena, and none beyond it. When it is full, tensors
    that can be recomputed are evicted, and recomputed when they are needed, with the same bits. Nothing is captured:
    programs may do what they like from step to step.

    Arguments:
        budget: bytes, "6GiB" or "60%" of the device.
        policy: what to evict, by name: "tide-memory", "tide", "coop", "dte", "dtr", "lru" and others; the guide has a
            table of them.
        host_budget: bytes of host memory in which evicted tensors may wait.
        link: bandwidth limit to and from the host, "12 GB/s"; None for what copying does here, measured once.
        model, optimizer: one or several, whose parameters, buffers and state are brought into the arena at once; others
            are when they are first used.
        record: a file to write an execution trace to, as `lowtide replay` reads it; `.gz` is compressed.

    Raises:
        BudgetError, LinkError: if a budget or the link is malformed; a share of plain, too: nothing is measured first.
        EagerError: if there is no such policy, or it cannot do what is asked; if a model is none.
        OptimizerError: if an optimizer is none.
        EagerError: if tensors lie on a GPU, here or, by the first operator that meets one, inside the context.
        ShimUnavailable: if the engine, which is compiled on first use, cannot be had here; nothing has been changed.
    """
    budget_B = _budget_B(budget)
    text("policy", policy, '"tide-memory"')
    path("record", record, '"step.jsonl.gz"')
    moves = offload_options(host_budget, link)
    names = policy_names()
    if policy not in names:
        raise EagerError(f"there is no policy {policy!r}: write one of {', '.join(sorted({*names} - COPYING))}")
    if policy in COPYING:
        raise EagerError(f"{policy!r} has no writes in place, and programs write in place: it is for lowtide replay")
    if moves["host_budget_B"] and policy not in OFFLOADING:
        movers = " or ".join(name for name in names if name in OFFLOADING)
        raise EagerError(f"{policy!r} offloads nothing: leave host_budget= out, or take {movers}")
    models, optimizers = _models(model), _optimizers(optimizer)
    _check_on_cpu(models, optimizers)
    if why := eager_shim.refusal():
        raise ShimUnavailable(f"lowtide.eager runs on compiled code, which cannot be had here: {why}")
    host_B, link_Bps = moves["host_budget_B"], moves["link_Bps"]
    if host_B and link_Bps is None:
        measured = bandwidth("cpu", ProfileCache())
        link_Bps = min(measured.to_host_Bps, measured.from_host_Bps)  # nothing runs while the thread copies
    engine = EagerRuntime(budget_B, policy, host_budget_B=host_B, link_Bps=link_Bps or 0.0, record=record)
    return Eager(engine, models, optimizers)


def _check_on_cpu(models: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]) -> None:
    """Raises:
    EagerError: if a tensor of a model or an optimizer lies where the engine does not reach.
    """
    tensors = [t for model in models for t in (*model.parameters(), *model.buffers())]
    tensors += [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    for tensor in tensors:
        if tensor.device.type not in ("cpu", "meta"):
            raise EagerError(
                f"lowtide.eager keeps a budget of CPU memory alone yet, and a tensor of this model lies on "
                f"{tensor.device}: train it with lowtide.fit, or on the CPU"
            )


def _budget_B(budget: int | str | Budget) -> int:
    return parse_budget(budget).in_B(_no_plain_step, lambda: device_memory_B("cpu"))


def _no_plain_step() -> NoReturn:
    raise BudgetError('"of plain" is not known before anything has run: give lowtide.eager bytes, "6GiB", or "60%"')


def _several(items: Any) -> list[Any]:
    if items is None:
        return []
    return list(items) if isinstance(items, Iterable) and not isinstance(items, torch.nn.Module) else [items]


def _models(items: Models) -> list[torch.nn.Module]:
    found = _several(items)
    for item in found:
        if not isinstance(item, torch.nn.Module):
            raise EagerError(f"model={shown(item)} is no torch.nn.Module: pass the module that is trained, or several")
    return found


def _optimizers(items: Optimizers) -> list[torch.optim.Optimizer]:
    found = _several(items)
    for item in found:
        if not isinstance(item, torch.optim.Optimizer):
            raise OptimizerError(
                f"optimizer={shown(item)} is no torch.optim.Optimizer: pass the object whose step() trains the model"
            )
    return found
