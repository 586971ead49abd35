"""What torch.distributed and DistributedDataParallel keep to themselves, as far as lowtide needs it.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import distributed

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket as GradBucket
    from torch._C._distributed_c10d import Store as Store
    from torch.distributed import ProcessGroup
    from torch.nn.parallel import DistributedDataParallel

Reduction = Callable[["GradBucket"], "torch.futures.Future[torch.Tensor]"]


def is_data_parallel(model: object) -> TypeGuard[DistributedDataParallel]:
    """Whether a model is one in DistributedDataParallel, whose ranks train together."""
    return distributed.is_available() and isinstance(model, torch.nn.parallel.DistributedDataParallel)


def model_inside(model: torch.nn.Module) -> torch.nn.Module:
    """The model that DistributedDataParallel calls: what is captured, as a whole; any other model itself."""
    if not is_data_parallel(model):
        return model
    inside: torch.nn.Module = model.module
    return inside


def calling_data_parallel() -> DistributedDataParallel | None:
    """The model in DistributedDataParallel whose forward is running, however it was wrapped; None outside of one."""
    if not distributed.is_available():
        return None
    return torch.nn.parallel.DistributedDataParallel._active_ddp_module


def refills_buckets(model: DistributedDataParallel) -> bool:
    """Whether torch fills its buckets anew after the first step, in the order in which gradients became ready."""
    return bool(model.static_graph or not model.find_unused_parameters)


def bucket_B(model: torch.nn.Module) -> int:
    """Bytes of the buckets in which DistributedDataParallel reduces gradients; 0 for any other model.

    They hold every gradient that is reduced once more, unless gradients are views of them, which nobody can rely on: a
    gradient that is set to None is a tensor of its own until it has been copied.
    """
    if not is_data_parallel(model):
        return 0
    left_alone: set[str] = getattr(model, "parameters_to_ignore", set())
    named = model_inside(model).named_parameters()
    return sum(p.nbytes for name, p in named if p.requires_grad and name not in left_alone)


def what_is_unsupported(model: DistributedDataParallel) -> str:
    """The option of DistributedDataParallel with which lowtide does not train; empty where there is none."""
    if getattr(model, "mixed_precision", None) is not None:
        return "mixed_precision="
    if getattr(model, "_delay_all_reduce_params", None):
        return "delay_all_reduce_named_params="
    if getattr(model, "_use_python_reducer", False):
        return 'torch._dynamo.config.optimize_ddp="python_reducer"'
    return ""


def joins(model: DistributedDataParallel) -> bool:
    """Whether a model is in torch's context for ranks with unequal numbers of batches."""
    return bool(model._join_config.enable)


def reduces(model: DistributedDataParallel) -> bool:
    """Whether the next backward reduces gradients: not inside `no_sync`."""
    return bool(model.require_backward_grad_sync)


def group_like(group: ProcessGroup, description: str) -> ProcessGroup:
    """Makes a gloo group of the ranks of another one; every rank of it has to call this.

    Raises:
        RuntimeError: if they do not within the group's time-out.
    """
    made: ProcessGroup | None = distributed.new_group(
        distributed.get_process_group_ranks(group),
        backend="gloo",
        use_local_synchronization=True,
        group_desc=description,
    )
    assert made is not None  # this rank is one of them
    return made


def own_store(prefix: str) -> Store:
    """The store through which the ranks found each other, under names of our own, on a connection of its own.

    A connection that waits for a key lets nobody else ask meanwhile.
    """
    store = distributed.distributed_c10d._get_default_store()
    if hasattr(store, "clone"):
        store = store.clone()
    found: Store = distributed.distributed_c10d.PrefixStore(prefix, store)
    return found


def reduce_by(model: DistributedDataParallel, reduction: Reduction) -> bool:
    """Has DistributedDataParallel reduce its buckets by a function; returns False where it has one already.

    Arguments:
        reduction: is given a bucket; as for `register_comm_hook`.
    """

    def hook(_: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return reduction(bucket)

    # torch reads the annotations as objects, and accepts these only.
    hook.__annotations__.update(bucket=distributed.GradBucket)  # type: ignore[attr-defined]
    hook.__annotations__["return"] = torch.futures.Future[torch.Tensor]
    try:
        model.register_comm_hook(None, hook)
    except RuntimeError as error:
        if "once" not in str(error):
            raise
        return False
    return True
