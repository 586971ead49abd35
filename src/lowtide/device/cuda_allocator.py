"""The allocator that torch asks for CUDA memory, and what it answers questions about it with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch


def change_cuda_allocator(library: str, entries: dict[str, int]) -> None:
    """Makes a library's functions this process's CUDA allocator.

    Arguments:
        library: path of the shared object.
        entries: addresses of what torch asks besides allocating: `record_stream`, `reset`, `base`, `begin_pool`.

    Raises:
        RuntimeError: if an allocator is in use already.
    """
    chosen = torch.cuda.memory.CUDAPluggableAllocator(library, "lowtide_cuda_malloc", "lowtide_cuda_free")
    inner = chosen.allocator()  # type: ignore[no-untyped-call]
    inner.set_record_stream_fn(entries["record_stream"])
    inner.set_reset_fn(entries["reset"])
    inner.set_base_alloc_fn(entries["base"])
    inner.set_begin_allocate_to_pool(entries["begin_pool"])
    torch.cuda.memory.change_current_allocator(chosen)


def cuda_index(device: Any) -> int:
    """The number of a CUDA device however it is named; None: the current one."""
    from torch.cuda._utils import _get_device_index

    return _get_device_index(device, optional=True)


@contextlib.contextmanager
def replaced_answers(answers: dict[str, Callable[..., Any]], *, mem_get_info: Callable[..., Any]) -> Iterator[None]:
    """Puts functions in the place of those by which torch asks its allocator, as far as this torch has them.

    Arguments:
        answers: by name in `torch._C`.
        mem_get_info: in the place of `torch.cuda.mem_get_info`.
    """
    wanted: list[tuple[Any, str, Callable[..., Any]]] = [(torch._C, name, call) for name, call in answers.items()]
    wanted += [(torch.cuda, "mem_get_info", mem_get_info), (torch.cuda.memory, "mem_get_info", mem_get_info)]
    found = [(place, name, call, getattr(place, name)) for place, name, call in wanted if hasattr(place, name)]
    try:
        for place, name, call, _ in found:
            setattr(place, name, call)
        yield
    finally:
        for place, name, _, before in found:
            setattr(place, name, before)
