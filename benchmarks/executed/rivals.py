"""What people do today when a model does not fit: each as they would write it, ready to be trained.

Units: `_B` bytes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.networks import Subject, loss_in
from lowtide.session.dynamo_call import compiled_call

_EXPENSIVE = {
    torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default,
    torch.ops.aten.convolution.default, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}  # fmt: skip


@dataclass(frozen=True)
class Rival:
    """One way to train a network.

    Arguments:
        module: from the seed.
        around: what is in force during a forward.
        reassociates: whether its kernels are not torch's own, so that equal bits are not to be expected.
        host: what it keeps outside the device; None if nothing.
    """

    name: str
    module: nn.Module
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    reassociates: bool = False
    host: Host | None = None

    def step(self, batch: dict[str, Any]) -> torch.Tensor:
        """Forward and backward, the outputs held until its end."""
        with self.around():
            outputs = self.module(**batch)
        loss = loss_in(outputs)
        loss.backward()
        return loss.detach()


@dataclass
class Host:
    """A stand-in for the memory of a host, where the device is the processor itself.

    `torch.autograd.graph.save_on_cpu` copies nothing if the tensor is on a CPU already. So the same hooks copy into
    memory of NumPy's, which torch's allocator does not see, and back: what the allocator holds is then what a device
    would hold. The copy runs at the speed of memory, a GPU's at that of its bus.
    """

    saved_B: int = 0

    def hooks(self) -> AbstractContextManager[object]:
        """What is in force during a forward."""
        self.saved_B = 0
        return saved_tensors_hooks(self._pack, _unpack)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        like = torch.empty_like(tensor.detach(), device="meta")
        size_B = like.untyped_storage().nbytes()
        self.saved_B += size_B
        capacity = torch.from_numpy(numpy.empty(size_B, numpy.uint8)).view(tensor.dtype)
        return capacity.as_strided(like.shape, like.stride()).copy_(tensor.detach())


def _unpack(kept: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(kept.shape, kept.stride(), dtype=kept.dtype).copy_(kept)


def _keep_expensive(_: object, operator: object, *__: object, **___: object) -> CheckpointPolicy:
    """Products and convolutions are kept, everything else is computed again."""
    return CheckpointPolicy.MUST_SAVE if operator in _EXPENSIVE else CheckpointPolicy.PREFER_RECOMPUTE


def checkpointed(subject: Subject, *, selective: bool) -> Rival:
    """Every block under `torch.utils.checkpoint`; the selective form keeps what is expensive."""
    model = subject.build()
    options: dict[str, Any] = {"use_reentrant": False}
    if selective:
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _keep_expensive)
    for block in subject.blocks(model):
        block.forward = functools.partial(checkpoint, block.forward, **options)
    return Rival("selective checkpoint" if selective else "checkpoint per block", model)


def offloaded(subject: Subject) -> Rival:
    """Every tensor that autograd saves lies on the host until its backward."""
    host = Host()
    return Rival("saved tensors on the host", subject.build(), host.hooks, host=host)


def stock(subject: Subject, budget: float) -> Rival:
    """Inductor, with its partitioner's budget in force while it compiles at the first call.

    Each variant's call has a code object of its own: Dynamo would serve equal models of one class with the first one's code.
    """
    model = subject.build()
    model._compiled_call_impl = compiled_call(model, "inductor", dynamic=False)
    with torch._functorch.config.patch(activation_memory_budget=budget):
        loss_in(model(**subject.batch())).backward()
    model.zero_grad(set_to_none=True)
    return Rival(f"torch.compile, budget {budget}", model, reassociates=True)


def eager(subject: Subject) -> Rival:
    """Nothing at all."""
    return Rival("eager", subject.build())


@dataclass(frozen=True)
class Outcome:
    """What one step leaves behind: the loss, gradients, buffers, and the generator."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]
    generator: torch.Tensor

    @staticmethod
    def of(module: nn.Module, step: Callable[[], torch.Tensor], start: dict[str, torch.Tensor]) -> Outcome:
        """Takes one step from a state and a seed, and drops the gradients again."""
        module.load_state_dict(start)
        module.zero_grad(set_to_none=True)
        torch.manual_seed(7)
        loss = step()
        generator = torch.get_rng_state()
        gradients = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
        buffers = {n: b.clone() for n, b in module.named_buffers()}
        module.zero_grad(set_to_none=True)
        return Outcome(loss.clone(), gradients, buffers, generator)

    def difference(self, right: Outcome) -> str:
        """ "equal" where every bit is; else what differs, and by how much of the right one's norm."""
        said = []
        if not torch.equal(self.loss, right.loss):
            said.append(f"loss by {float((self.loss - right.loss).abs() / right.loss.abs()):.1e}")
        if self.gradients.keys() != right.gradients.keys():
            said.append("other parameters have gradients")
        elif any(not torch.equal(g, right.gradients[n]) for n, g in self.gradients.items()):
            said.append(f"gradients by {_distance(self.gradients, right.gradients):.1e}")
        wrong = sum(not torch.equal(b, right.buffers[n]) for n, b in self.buffers.items())
        if wrong:
            said.append(f"{wrong} of {len(self.buffers)} buffers by {_distance(self.buffers, right.buffers):.1e}")
        if not torch.equal(self.generator, right.generator):
            said.append("generator")
        return "; ".join(said) or "equal"


def _distance(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """The norm of the difference over the norm of the right one, all tensors as one vector."""
    off = sum(float((found[n].double() - right[n].double()).square().sum()) for n in right)
    whole = sum(float(t.double().square().sum()) for t in right.values())
    return float((off / whole) ** 0.5) if whole else float(off > 0)
