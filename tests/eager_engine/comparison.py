"""What steps of training leave behind, bit by bit, read without keeping a tensor."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.eager_engine.networks import EagerNetwork, Optimizers

Inside = Callable[[nn.Module, Optimizers], contextlib.AbstractContextManager[Any]]
"""From what is trained to the context in which it is trained."""


@dataclass(frozen=True)
class Left:
    """What a training left.

    Arguments:
        steps: after each one, a digest of everything by name: loss, gradients, parameters, buffers, the optimizers'
            state, the generator.
        losses: of each step.
    """

    steps: tuple[dict[str, str], ...]
    losses: tuple[float, ...]


def digest(tensor: torch.Tensor) -> str:
    """Of a tensor's type, shape and bytes.

    One element is asked for by an operator first, which rematerialises an evicted tensor. The bytes are read past torch
    at once: a numpy array over them would keep them from ever being moved or evicted again.
    """
    tensor = tensor.detach().contiguous()
    if tensor.numel():
        tensor[(0,) * tensor.dim()].item()
    start = tensor.untyped_storage().data_ptr() + tensor.storage_offset() * tensor.element_size()
    content = ctypes.string_at(start, tensor.nbytes) if tensor.numel() else b""
    found = hashlib.blake2b(content, digest_size=12)
    found.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
    return found.hexdigest()


def _state(optimizers: Optimizers) -> Iterator[tuple[str, torch.Tensor]]:
    for which, optimizer in enumerate(optimizers):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for index, parameter in enumerate(parameters):
            for key, kept in optimizer.state.get(parameter, {}).items():
                if isinstance(kept, torch.Tensor):
                    yield f"optimizer {which}, {key} of {index}", kept


def everything(module: nn.Module, optimizers: Optimizers) -> dict[str, str]:
    """Digests of what a step leaves, by name."""
    found = {f"parameter {name}": digest(p) for name, p in module.named_parameters()}
    for name, parameter in module.named_parameters():
        found[f"gradient of {name}"] = "none" if parameter.grad is None else digest(parameter.grad)
    found |= {f"buffer {name}": digest(b) for name, b in module.named_buffers()}
    found |= {name: digest(kept) for name, kept in _state(optimizers)}
    found["generator"] = digest(torch.get_rng_state())
    return found


def train(network: EagerNetwork, steps: int = 10, inside: Inside | None = None) -> Left:
    """Trains from the seeds.

    Arguments:
        inside: in which context; plainly if there is none. Batches are made inside too.
    """
    module, optimizers = network.start()
    digests, losses = [], []
    with contextlib.nullcontext() if inside is None else inside(module, optimizers):
        for batch in network.batches(steps):
            loss = network.step(module, optimizers, batch)
            losses.append(float(loss))
            digests.append({"loss": losses[-1].hex()} | everything(module, optimizers))
    after = everything(module, optimizers)
    assert digests, "a training has steps"
    digests.append({"loss": losses[-1].hex()} | after)
    return Left(tuple(digests), tuple(losses))


def differences(plain: Left, other: Left) -> list[str]:
    """Everything that is not bit-equal, by step and name; the last entry is after the context."""
    found = []
    for number, (a, b) in enumerate(zip(plain.steps, other.steps, strict=True)):
        found += [f"step {number}: {name}" for name in a.keys() | b.keys() if a.get(name) != b.get(name)]
    return sorted(found)
