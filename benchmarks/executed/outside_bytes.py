"""One network inside a hard budget: what grows outside the arena, and what was never in it.

Units: `_B` bytes.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import re
import resource
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lowtide
from benchmarks.executed.hard_budget_prediction import adamw, resident_B
from benchmarks.fidelity.soak import rss_B
from benchmarks.networks import SUBJECTS, loss_in
from lowtide.device.arena import Arena
from lowtide.session.budget_scope import Scope

WARM_UPS = 5
BUDGET = "80% of plain"


@dataclass(frozen=True)
class Mapping:
    """One line of the process's address space, and what of it is resident."""

    size_B: int
    access: str
    name: str
    resident_B: int


def mappings() -> list[Mapping]:
    """The address space, by address."""
    found: list[Mapping] = []
    head = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ *(.*)")
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if at := head.fullmatch(line):
            begin, end, access, name = at.groups()
            size_B = int(end, 16) - int(begin, 16)
        elif line.startswith("Rss:"):
            found.append(Mapping(size_B, access, name, int(line.split()[1]) * 1024))
    return found


def jit_B() -> int:
    """Resident bytes of code that no file holds: what oneDNN has generated."""
    return sum(m.resident_B for m in mappings() if "x" in m.access and not m.name)


def stacks_B() -> int:
    """Resident bytes of the stacks: the first thread's, and mappings of a stack's size behind a guard."""
    most_B = resource.getrlimit(resource.RLIMIT_STACK)[0]
    found = mappings()
    stacks = [m for g, m in itertools.pairwise(found) if g.access == "---p" and m.size_B == most_B]
    return sum(m.resident_B for m in (*stacks, *(m for m in found if m.name == "[stack]")))


class _MallInfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )  # fmt: skip


def malloc_B() -> int:
    """Bytes that the C library's heap has given out."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _MallInfo
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def mkl_B() -> int:
    """Bytes that MKL keeps for packing matrices; 0 where torch came without MKL."""
    library = ctypes.CDLL(str(Path(torch.__path__[0]) / "lib" / "libtorch_cpu.so"))
    if not hasattr(library, "mkl_serv_mem_stat"):
        return 0
    library.mkl_serv_mem_stat.restype = ctypes.c_int64
    return int(library.mkl_serv_mem_stat(ctypes.byref(ctypes.c_int())))


def forget_most() -> None:
    """Lets the kernel count the most resident bytes anew."""
    Path("/proc/self/clear_refs").write_text("5")


def most_B() -> int:
    """The most bytes that were resident since `forget_most`."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, "Linux tells it"
    return int(found[1]) * 1024


def batches(template: dict[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Fresh numbers of the same shapes."""
    generator = torch.Generator().manual_seed(3)
    while True:
        batch = {}
        for name, tensor in template.items():
            if tensor.is_floating_point():
                batch[name] = torch.randn(tensor.shape, generator=generator)
            else:
                batch[name] = torch.randint(0, int(tensor.max()) + 1, tensor.shape, generator=generator)
        yield batch


def nodes_behind(loss: torch.Tensor) -> int:
    """Autograd nodes that a loss keeps alive."""
    seen: set[Any] = set()
    left: list[Any] = [loss.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [n for n, _ in node.next_functions]
    return len(seen)


def eagerly(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, int]:
    """What plain eager's first step leaves outside an arena that serves every tensor, and its second forward holds."""
    arena = Arena(2**34, small_zone_B=2**20, persistent_B=0)
    before_B = {"jit": jit_B(), "mkl": mkl_B()}
    with arena.engaged():
        loss_in(model(**batch)).backward()
        model.zero_grad()
        malloced_B = malloc_B()
        loss = loss_in(model(**batch))
        held_B = malloc_B() - malloced_B
        nodes = nodes_behind(loss)
        del loss
    return {
        "nodes": nodes,
        "heap_of_forward_B": held_B,
        "jit_B": jit_B() - before_B["jit"],
        "mkl_B": mkl_B() - before_B["mkl"],
    }


def inside(name: str, scope: Scope, steps: int) -> dict[str, Any]:
    """Trains inside a hard budget, in a process of its own."""
    subject = SUBJECTS[name]
    model = subject.build()
    optimizer = adamw(model)
    source = batches(subject.batch())
    eager = eagerly(subject.build(), next(source))
    gc.collect()
    forget_most()
    before_B = rss_B()
    plan = lowtide.plan(model, kwargs=next(source), budget=BUDGET, optimizer=optimizer, scope=scope)
    planning_B = most_B() - before_B, rss_B() - before_B
    lowtide.fit(model, plan=plan, optimizer=optimizer, scope=scope)

    def step() -> None:
        optimizer.zero_grad()
        loss_in(model(**next(source))).backward()
        optimizer.step()

    for _ in range(WARM_UPS):
        step()
    warm_B = rss_B()
    grown_B = []
    for _ in range(steps):
        step()
        grown_B.append(rss_B() - warm_B)
    stats = lowtide.memory_stats(model)
    arena = model.lowtide.session.budget_scope.hard_budget.arena.stats()  # type: ignore[union-attr]
    optimizer.zero_grad()
    batch = next(source)
    malloced_B = malloc_B()
    loss = loss_in(model(**batch))
    held_B, nodes = malloc_B() - malloced_B, nodes_behind(loss)
    loss.backward()
    del loss
    tracemalloc.start()
    step()
    level_B, peak_B = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "scope": scope,
        "grown_B": grown_B,
        "reserved_B": stats.reserved_B,
        "budget_B": stats.budget_B,
        "concurrent_B": stats.budget_B - stats.arena_B,
        "spills": stats.spills,
        "departures": stats.misplaced_allocations,
        "others_B": arena.outside_B,
        "batch_B": resident_B(model, batch) - resident_B(model, {}),
        "planning_peak_B": planning_B[0],
        "planning_left_B": planning_B[1],
        "heap_of_forward_B": held_B,
        "nodes": nodes,
        "python_B": peak_B - level_B,
        "jit_B": jit_B(),
        "mkl_B": mkl_B(),
        "stacks_B": stacks_B(),
        "threads": len(os.listdir("/proc/self/task")),
        "eager": eager,
    }
