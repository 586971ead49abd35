"""What a hard budget does not hold: what grows beside the arena, what was never in it, and why.

Units: `_B` bytes.
"""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy
import torch

from benchmarks.executed.hard_budget_prediction import mb
from benchmarks.executed.outside_bytes import BUDGET, WARM_UPS, inside
from benchmarks.runner import answer_of
from lowtide.device.arena import Arena

NETWORKS = ("gpt2", "resnet50")
SCOPES = ("step", "process")
TARGET_B = 10_000_000
_MiB = 2**20

GROWTH = (
    "network", "scope", "steps", "RSS growth MB", "most MB", "reserved MB of budget", "departures", "spills",
    "by other threads outside MB",
)  # fmt: skip
COVERAGE = ("what", "why it is outside", *(f"{n}, MB" for n in NETWORKS), "plain eager, MB")
PROBES = ("1 MiB made while an arena is engaged by", "in the arena, MiB", "remark")


def run(name: str, scope: str, steps: int) -> dict[str, Any]:
    """One network in a process of its own."""
    found: dict[str, Any] = answer_of(inside, name, scope, steps)
    return found


def growth(name: str, found: dict[str, Any]) -> list[object]:
    """A row of what grew during warm steps."""
    return [
        name, found["scope"], len(found["grown_B"]), f"{found['grown_B'][-1] / 1e6:+.1f}", f"{max(found['grown_B']) / 1e6:+.1f}",
        f"{mb(found['reserved_B'])} of {mb(found['budget_B'])}", found["departures"], found["spills"], mb(found["others_B"]),
    ]  # fmt: skip


def coverage(step: dict[str, dict[str, Any]]) -> list[list[object]]:
    """What is not covered, with what was measured at each network.

    Arguments:
        step: by network, what its run with the scope "step" found.
    """

    def row(what: str, why: str, of: Callable[[dict[str, Any]], object], eager: object = "-") -> list[object]:
        return [what, why, *(of(step[n]) for n in NETWORKS), eager]

    def both(key: str, digits: int = 2) -> str:
        return ", ".join(f"{step[n]['eager'][key] / 1e6:.{digits}f}" for n in NETWORKS)

    return [
        row(
            "parameters and buffers that cannot be moved",
            "shared with NumPy or another process; counted in the budget, left where they are; the others move in",
            lambda r: mb(r["concurrent_B"]),
        ),
        row(
            "the batch",
            'scope "step": made between the steps; counted, and as much of the arena stays empty; "process": inside',
            lambda r: f"{r['batch_B'] / 1e6:.2f}",
        ),
        row(
            "MKL's packing buffers",
            "MKL allocates them itself, once per thread and size, and keeps them (`mkl_free_buffers`)",
            lambda r: f"{r['mkl_B'] / 1e6:.2f}",
            both("mkl_B"),
        ),
        row(
            "oneDNN's generated code",
            "executable pages of its own, one kernel per shape, in a cache of 1024 primitives",
            lambda r: f"{r['jit_B'] / 1e6:.2f}",
            both("jit_B"),
        ),
        row(
            "stacks",
            "mapped by the thread library; workers of parallel operators and the autograd engine",
            lambda r: f"{r['stacks_B'] / 1e6:.2f} ({r['threads']} threads)",
        ),
        row(
            "autograd nodes and tensor headers",
            "C++ objects on the heap, gone after the backward: what a forward leaves there",
            lambda r: f"{r['heap_of_forward_B'] / 1e6:.3f} ({r['nodes']} nodes)",
            ", ".join(f"{step[n]['eager']['heap_of_forward_B'] / 1e6:.3f} ({step[n]['eager']['nodes']})" for n in NETWORKS),
        ),
        row("Python objects", "of one step, at most, by tracemalloc", lambda r: f"{r['python_B'] / 1e6:.3f}"),
        row(
            "capture, measurement and planning, at most",
            "before the first step: operators are measured one by one in torch's own memory, Python and Dynamo load code",
            lambda r: mb(r["planning_peak_B"]),
        ),
        row(
            "capture, measurement and planning, left behind",
            "compiled graphs, plans, imported modules, and what the heap does not give back",
            lambda r: mb(r["planning_left_B"]),
        ),
    ]  # fmt: skip


def _loaded(tensor: torch.Tensor) -> Callable[[], object]:
    import io

    file = io.BytesIO()
    torch.save(tensor, file)
    return lambda: (file.seek(0), torch.load(file))[1]


def _threaded(make: Callable[[], object]) -> Callable[[], object]:
    def work() -> object:
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(make()))
        thread.start()
        thread.join()
        return found

    return work


def _forked() -> object:
    """A tensor from a forked worker, as a DataLoader's comes: through shared memory."""
    context = multiprocessing.get_context("fork")
    queue: Any = context.SimpleQueue()
    worker = context.Process(target=lambda: queue.put(torch.ones(_MiB // 4).numpy().tobytes()))
    worker.start()
    found = queue.get()
    worker.join()
    return found


def probes() -> list[list[object]]:
    """Where 1 MiB goes that is made in each of the usual ways, while an arena is engaged."""
    x = torch.ones(_MiB // 4)
    pickled = pickle.dumps(x)
    default = "torch takes its default allocator by name, not the one in force"
    candidates: list[tuple[str, Callable[[], object], str]] = [
        ("an operator, `clone`, `tensor.resize_`", x.clone, ""),
        ("`torch.tensor(list)`", lambda: torch.tensor([1.0] * (_MiB // 4)), ""),
        ("`torch.load`", _loaded(x), ""),
        ("`untyped_storage().resize_`", lambda: _resized(_MiB), ""),
        ("`copy.deepcopy(tensor)`", lambda: copy.deepcopy(x), default),
        ("`torch.UntypedStorage(n)`", lambda: torch.UntypedStorage(_MiB), default),
        ("`pickle.loads`", lambda: pickle.loads(pickled), default),
        ("`torch.from_numpy`", lambda: torch.from_numpy(numpy.ones(_MiB // 4, numpy.float32)), "NumPy's own memory"),
        ("`tensor.numpy().copy()`", lambda: x.numpy().copy(), "NumPy's own memory"),
        ("`torch.frombuffer`", lambda: torch.frombuffer(bytearray(_MiB), dtype=torch.float32), "Python's own memory"),
        ("`share_memory_()`", lambda: x.clone().share_memory_(), "moved to shared memory"),
        ("another thread, scope \"step\"", _threaded(x.clone), "may be anybody's; the arena counts its bytes as `outside`"),
        ("a forked worker", _forked, "a process of its own, without an arena"),
    ]  # fmt: skip
    arena = Arena(64 * _MiB, small_zone_B=2**16, persistent_B=0)
    rows = [[candidate, f"{_held_B(arena, make) / _MiB:.2f}", remark or "-"] for candidate, make, remark in candidates]
    open_to_all = Arena(64 * _MiB, small_zone_B=2**16, persistent_B=0, all_threads=True)
    held_B = _held_B(open_to_all, _threaded(x.clone))
    return [*rows, ['another thread, scope "process"', f"{held_B / _MiB:.2f}", "-"]]


def _resized(size_B: int) -> torch.Tensor:
    tensor = torch.empty(0)
    tensor.untyped_storage().resize_(size_B)
    return tensor


def _held_B(arena: Arena, make: Callable[[], object]) -> int:
    before_B = arena.stats().in_use_B
    with arena.engaged():
        made = make()
    held_B = arena.stats().in_use_B - before_B
    del made
    return held_B


NOTE = f"Budget {BUDGET}, AdamW, a fresh batch each step, {WARM_UPS} steps before; growth of the whole process, arena included."
