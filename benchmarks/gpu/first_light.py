"""The first thirty minutes of a GPU: what holds of what lowtide takes for granted, one JSON line per fact.

    python -m benchmarks.gpu.first_light --out first_light.jsonl            everything, in the order of its worth
    python -m benchmarks.gpu.first_light --only tenant bits                 some stages
    python -m benchmarks.gpu.first_light --device cpu --quick               the script itself, without a GPU

Every stage is a process of its own with a limit of its own: one that hangs, is killed or is refused costs its own time, and
what it had found until then stays. A line has the stage, the fact and what was seen; a stage that did not end says why. The
last line counts. Needs torch, lowtide, a C++ compiler and Python's headers; transformers and the like are not needed.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.runner import HandOver, Limits, run

MiB, GiB = 2**20, 2**30


def machine(hand_over: HandOver, device: str, _quick: bool) -> None:
    """What is here, and whether lowtide's compiled modules can be built."""
    import torch

    import lowtide
    from lowtide.device import cuda_shim, shim, tenant_shim
    from lowtide.errors import ShimUnavailable

    say = _sayer(hand_over)
    say("versions", python=platform.python_version(), torch=torch.__version__, cuda=torch.version.cuda)
    say("lowtide", version=lowtide.__version__)
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    say("compiler", path=shutil.which("c++") or shutil.which("g++"), python_headers=headers.is_file())
    if device == "cuda":
        free_B, total_B = torch.cuda.mem_get_info()
        facts = torch.cuda.get_device_properties(0)
        say("gpu", name=facts.name, capability=torch.cuda.get_device_capability(), memory_B=facts.total_memory)
        say("context", taken_B=total_B - free_B)
    modules: dict[str, Callable[[], object]] = {"cpu": shim.load}
    if device == "cuda":
        modules |= {"tenant": tenant_shim.load, "whole process": cuda_shim.load}
    for name, load in modules.items():
        begun_s = time.perf_counter()
        try:
            load()
        except ShimUnavailable as error:
            say("module", name=name, refused=str(error))
        else:
            say("module", name=name, build_s=time.perf_counter() - begun_s)


def issue(hand_over: HandOver, device: str, quick: bool) -> None:
    """What one call costs the processor and the device, through torch and by its overload."""
    import torch

    from lowtide.device.clock import timed

    say = _sayer(hand_over)
    small = torch.ones(64, 64, device=device)
    large = torch.ones(256 if quick else 4096, 256 if quick else 4096, device=device)
    calls: dict[str, Callable[[], object]] = {
        "torch.add": lambda: torch.add(small, small),
        "aten.add.Tensor": lambda: torch.ops.aten.add.Tensor(small, small),
        "aten.mm, small": lambda: torch.ops.aten.mm.default(small, small),
        "aten.view": lambda: torch.ops.aten.view.default(small, [4096]),
        "aten.as_strided": lambda: torch.ops.aten.as_strided.default(small, [4096], [1]),
        "aten.mm, large": lambda: torch.ops.aten.mm.default(large, large),
        "aten.gelu, large": lambda: torch.ops.aten.gelu.default(large),
    }
    for name, call in calls.items():
        call()
        found = timed(call, device=device)
        say("call", name=name, device_s=found.device_s, issue_s=found.issue_s)


def libraries(hand_over: HandOver, device: str, _quick: bool) -> None:
    """What cuBLAS keeps after a forward, and after a backward with autograd's threads and without."""
    import torch

    from lowtide.device import library_workspaces

    say = _sayer(hand_over)
    if device != "cuda":
        say("skipped", why="a GPU's libraries")
        return
    say("configured", size_B=library_workspaces.configured_B(0))
    before_B = torch.cuda.memory_allocated()
    weight = torch.randn(256, 256, device=device, requires_grad=True)
    held_B = torch.cuda.memory_allocated()
    for name, threads in (("caller's thread", False), ("autograd's thread", True)):
        with torch.autograd.set_multithreading_enabled(threads):
            loss = (weight @ weight).sum()
            say("after a forward", more_B=torch.cuda.memory_allocated() - held_B)
            loss.backward()
            weight.grad = loss = None
            torch.cuda.synchronize()
            say("after a backward", on=name, more_B=torch.cuda.memory_allocated() - held_B)
    say("measured", size_B=library_workspaces.held_B("cuda"), before_B=before_B)


def capture(hand_over: HandOver, device: str, _quick: bool) -> None:
    """What is allowed while a CUDA graph is captured: generator states, events, the arena's own questions."""
    import torch

    say = _sayer(hand_over)
    if device != "cuda":
        say("skipped", why="CUDA graphs")
        return
    x = torch.randn(1024, device=device)
    state = torch.cuda.get_rng_state()
    event = torch.cuda.Event()
    event.record()

    def tries(name: str, call: Callable[[], object]) -> None:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                y = torch.nn.functional.dropout(x, 0.5)
                call()
                z = y + 1
            graph.replay()
            torch.cuda.synchronize()
            say("in a capture", what=name, allowed=True, sum=float(z.sum()))
        except RuntimeError as error:
            say("in a capture", what=name, allowed=False, error=str(error).splitlines()[0])

    tries("nothing", lambda: None)
    tries("set_rng_state", lambda: torch.cuda.set_rng_state(state))
    tries("event.query", event.query)


def link(hand_over: HandOver, device: str, quick: bool) -> None:
    """Seconds to pin memory by registering and by torch, and bytes per second both ways."""
    import torch

    from lowtide.device.host import HostPool

    say = _sayer(hand_over)
    if device != "cuda":
        say("skipped", why="the link to a GPU")
        return
    size_B = GiB // 4 if quick else GiB
    begun_s = time.perf_counter()
    pool = HostPool(2 * size_B)
    registered = pool.empty((size_B,))
    say(
        "registered",
        pinning=pool.pinning,
        pinned_B=pool.pinned_B,
        s_per_GiB=(time.perf_counter() - begun_s) * GiB / size_B,
    )
    begun_s = time.perf_counter()
    pinned = torch.empty(size_B, dtype=torch.uint8, pin_memory=True)
    say("pinned by torch", s_per_GiB=(time.perf_counter() - begun_s) * GiB / size_B)
    there = torch.empty(size_B, dtype=torch.uint8, device=device)
    for name, here in (
        ("registered", registered),
        ("pinned", pinned),
        ("pageable", torch.empty(size_B, dtype=torch.uint8)),
    ):
        for way, target, source in (("to the GPU", there, here), ("from the GPU", here, there)):
            times = []
            for _ in range(4):
                torch.cuda.synchronize()
                begun_s = time.perf_counter()
                target.copy_(source, non_blocking=True)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - begun_s)
            say("copy", memory=name, way=way, rate_Bps=size_B / statistics.median(times[1:]))


def repeats(hand_over: HandOver, device: str, quick: bool) -> None:
    """Which operators give other bits from equal inputs, five runs each, as they are and deterministic."""
    import torch
    from torch.nn import functional

    say = _sayer(hand_over)
    n = 64 if quick else 4096
    draw = torch.Generator(device=device).manual_seed(0)
    matrix = torch.randn(n, 256, device=device, generator=draw)
    index = torch.randint(0, 64, (n,), device=device, generator=draw)
    image = torch.randn(8, 16, 32, 32, device=device, generator=draw)
    kernel = torch.randn(16, 16, 3, 3, device=device, generator=draw)
    heads = torch.randn(4, 8, 64 if quick else 1024, 64, device=device, generator=draw)

    def gradient(call: Callable[..., Any], *tensors: Any) -> Any:
        leaves = [t.detach().clone().requires_grad_() if t.is_floating_point() else t for t in tensors]
        result = call(*leaves)
        wanted = [t for t in leaves if t.requires_grad]
        return torch.autograd.grad(result, wanted, torch.ones_like(result))

    table = torch.randn(64, 256, device=device, generator=draw)
    labels = index % 256
    sdpa = functional.scaled_dot_product_attention
    calls: dict[str, Callable[[], Any]] = {
        "index_add": lambda: torch.zeros(64, 256, device=device).index_add(0, index, matrix),
        "scatter_add": lambda: torch.zeros(64, 256, device=device).scatter_add(
            0, index[:, None].expand(-1, 256), matrix
        ),
        "scatter_reduce amax": lambda: torch.zeros(64, 256, device=device).scatter_reduce(
            0, index[:, None].expand(-1, 256), matrix, "amax"
        ),
        "embedding backward": lambda: gradient(lambda t: functional.embedding(index, t), table),
        "gather backward": lambda: gradient(lambda t: t.gather(0, index[:, None].expand(-1, 256)), table),
        "index_select backward": lambda: gradient(lambda t: t.index_select(0, index), table),
        "repeat_interleave backward": lambda: gradient(lambda t: t.repeat_interleave(3, 0), table),
        "cumsum": lambda: matrix.cumsum(0),
        "sum": matrix.sum,
        "mm": lambda: matrix @ matrix.T,
        "mm, half": lambda: matrix.half() @ matrix.half().T,
        "mm, bfloat16": lambda: matrix.bfloat16() @ matrix.bfloat16().T,
        "layer_norm backward": lambda: gradient(lambda t: functional.layer_norm(t, (256,)), matrix),
        "softmax backward": lambda: gradient(lambda t: t.softmax(-1), matrix),
        "cross_entropy backward": lambda: gradient(lambda t: functional.cross_entropy(t, labels), matrix),
        "nll_loss2d backward": lambda: gradient(
            lambda t: functional.nll_loss(t, torch.zeros(8, 32, 32, dtype=torch.long, device=device)), image
        ),
        "convolution": lambda: functional.conv2d(image, kernel, padding=1),
        "convolution backward": lambda: gradient(lambda a, b: functional.conv2d(a, b, padding=1), image, kernel),
        "batch_norm backward": lambda: gradient(lambda t: functional.batch_norm(t, None, None, training=True), image),
        "group_norm backward": lambda: gradient(lambda t: functional.group_norm(t, 4), image),
        "max_pool2d backward": lambda: gradient(lambda t: functional.max_pool2d(t, 3, 1), image),
        "avg_pool2d backward": lambda: gradient(lambda t: functional.avg_pool2d(t, 3, 1), image),
        "adaptive_avg_pool2d backward": lambda: gradient(lambda t: functional.adaptive_avg_pool2d(t, 5), image),
        "adaptive_max_pool2d backward": lambda: gradient(lambda t: functional.adaptive_max_pool2d(t, 5), image),
        "interpolate bilinear backward": lambda: gradient(
            lambda t: functional.interpolate(t, scale_factor=1.7, mode="bilinear"), image
        ),
        "interpolate nearest backward": lambda: gradient(lambda t: functional.interpolate(t, scale_factor=2), image),
        "grid_sample backward": lambda: gradient(
            lambda t: functional.grid_sample(t, torch.zeros(8, 9, 9, 2, device=device), align_corners=False), image
        ),
        "attention": lambda: sdpa(heads, heads, heads, is_causal=True),
        "attention backward": lambda: gradient(lambda q, k, v: sdpa(q, k, v, is_causal=True), heads, heads, heads),
        "attention backward, bfloat16": lambda: gradient(
            lambda q, k, v: sdpa(q, k, v, is_causal=True), *(heads.bfloat16() for _ in range(3))
        ),
        "gelu backward": lambda: gradient(functional.gelu, matrix),
        "sort": lambda: matrix.flatten().sort(stable=False).indices,
        "topk": lambda: matrix.topk(16).indices,
        "histc": lambda: matrix.histc(64),
        "bincount": lambda: index.bincount(weights=matrix[:, 0]),
    }
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)
        odd, refused = [], []
        for name, call in calls.items():
            try:
                results = [_digest(call()) for _ in range(5)]
            except RuntimeError as error:
                refused.append(f"{name}: {str(error).splitlines()[0][:80]}")
                continue
            if len(set(results)) > 1:
                odd.append(name)
        say("repeat themselves", deterministic=deterministic, tried=len(calls), not_so=odd, refused=refused)


def process_arena(hand_over: HandOver, device: str, _quick: bool) -> None:
    """`install_cuda`: who is refused and how, side streams, a fork, and a clean end."""
    import torch

    import lowtide
    from lowtide.device import cuda

    say = _sayer(hand_over)
    if device != "cuda":
        say("skipped", why="a GPU's allocator")
        return
    lowtide.install_cuda("1GiB")
    say("installed", level=cuda.level())
    say("trained", losses=_train(torch.nn.Linear(256, 256).cuda(), device, 3))
    try:
        torch.empty(2 * GiB, dtype=torch.uint8, device=device)
        say("past the budget", refused=False)
    except torch.OutOfMemoryError as error:
        say("past the budget", refused=True, error=str(error).splitlines()[0])
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        other = torch.ones(1024, device=device) * 2
        other.record_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_stream(side)
    say("side stream", sum=float(other.sum()))
    say("fork", child=_child())
    say("answers", stats_B=torch.cuda.memory_allocated(), info=torch.cuda.mem_get_info())


def tenant(hand_over: HandOver, device: str, _quick: bool) -> None:
    """Arenas inside torch's allocator: after CUDA was used, planned places, refusals, streams, graphs, a fork."""
    import torch

    from lowtide.device import tenant_shim
    from lowtide.device.arena import Arena, Table, fast_at, nothing_engaged

    say = _sayer(hand_over)
    if device != "cuda":
        say("skipped", why="a GPU's allocator")
        return
    before = torch.ones(MiB, device=device)
    module = tenant_shim.load()
    say("in front of torch", active=module.is_active(), backend=torch.cuda.get_allocator_backend())
    arena = Arena(64 * MiB, small_zone_B=MiB, persistent_B=8 * MiB, device="cuda")
    say("arena", base_modulo_512=arena.slab.base % 512, allocated_B=torch.cuda.memory_allocated())
    arena.plan_top_B = 16 * MiB
    table = Table([4 * MiB, MiB], [512, 8 * MiB], [0, 1, 2], ["first", "second"], "cuda")
    with arena.engaged():
        arena.enter(table)
        mark = fast_at("cuda")
        mark(0)
        first = torch.empty(MiB, device=device)
        mark(1)
        second = torch.empty(MiB // 4, device=device)
        hits = arena.leave()
        places = [t.data_ptr() - arena.slab.base for t in (first, second)]
        say("planned places", hits=hits, as_planned=places == [512, 8 * MiB])
        try:
            torch.empty(128 * MiB, dtype=torch.uint8, device=device)
            say("past the arena", refused=False)
        except torch.OutOfMemoryError as error:
            say("past the arena", refused=True, error=str(error).splitlines()[0])
        with nothing_engaged():
            outside = torch.ones(MiB, device=device)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            other = torch.ones(MiB, device=device)
            other.record_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(side)
        say("streams", sum=float((other + first.fill_(1.0)).sum()), waits=module.waits(arena.slab))
        product = torch.mm(first.view(1024, 1024), first.view(1024, 1024))
        say("kernels on it", right=bool((product == 1024).all()), before=float(before.sum() + outside.sum()))
    say("fork", child=_child())
    x = torch.ones(1024, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    torch.cuda.synchronize()
    say("somebody else's graph", sum=float(y.sum()))
    del first, second, other, product
    arena.close()
    torch.cuda.empty_cache()
    say("closed", allocated_B=torch.cuda.memory_allocated(), segments=len(torch.cuda.memory_snapshot()))


def bits(hand_over: HandOver, device: str, quick: bool, name: str, deterministic: bool, budgets: list[str]) -> None:
    """Plain against plain, then fitted against plain, at several budgets: bits, peaks, places."""
    import torch

    import lowtide
    from benchmarks.gpu.subjects import SUBJECTS

    say = _sayer(hand_over, network=name, deterministic=deterministic)
    torch.use_deterministic_algorithms(deterministic)
    subject = SUBJECTS[name](quick)
    plain, plain_B = _steps(subject, device, None)
    again, _ = _steps(subject, device, None)
    say("plain against plain", equal=plain == again, peak_B=plain_B)
    for budget in budgets:
        seen: dict[str, Any] = {}

        def fit(model: Any, optimizer: Any, budget: str = budget, seen: dict[str, Any] = seen) -> None:
            lowtide.fit(model, budget, optimizer=optimizer)
            seen["model"] = model

        try:
            found, peak_B = _steps(subject, device, fit)
        except (lowtide.errors.LowtideError, RuntimeError) as error:
            say("fitted", budget=budget, refused=f"{type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        plan, stats = seen["model"].lowtide.plan, lowtide.memory_stats(seen["model"])
        say(
            "fitted",
            budget=budget,
            equal=found == plain,
            kind=plan.budget_kind,
            budget_B=plan.budget_B,
            predicted_B=plan.record.reserved_B,
            reserved_B=stats.reserved_B,
            torch_peak_B=peak_B,
            hits=stats.planned_hits,
            misses=stats.planned_misses,
            misplaced=stats.misplaced_allocations,
            spills=stats.spills,
            not_repeatable=[r.op for r in plan.record.graph.recipes if not r.repeats],
            breakdown=dict(plan.record.breakdown.rows()),
        )
        lowtide.unfit(seen["model"])


def offloading(hand_over: HandOver, device: str, quick: bool) -> None:
    """Values on the host, twenty steps against plain; a race would show in the bits."""
    import torch

    import lowtide
    from benchmarks.gpu.subjects import SUBJECTS

    say = _sayer(hand_over)
    torch.use_deterministic_algorithms(True)
    subject = SUBJECTS["gpt"](quick)
    count = 4 if quick else 20
    plain, _ = _steps(subject, device, None, count)
    fit = lambda model, optimizer: lowtide.fit(model, _tight(quick), optimizer=optimizer, host_budget="8GiB")  # noqa: E731
    found, peak_B = _steps(subject, device, fit, count)
    say("offloaded", equal=found == plain, peak_B=peak_B)


def whole_steps(hand_over: HandOver, device: str, quick: bool) -> None:
    """`TrainStep` against the plain loop."""
    import torch

    import lowtide
    from benchmarks.gpu.subjects import SUBJECTS

    say = _sayer(hand_over)
    torch.use_deterministic_algorithms(True)
    subject = SUBJECTS["gpt"](quick)
    plain, _ = _steps(subject, device, None)
    torch.manual_seed(0)
    model = subject.make().to(device)
    step = lowtide.TrainStep(model, None, torch.optim.AdamW(model.parameters(), lr=1e-3), _tight(quick))
    losses = [step(*subject.batch(number, device)) for number in range(len(plain[0]))]
    found = ([_digest(loss) for loss in losses], [_digest(p) for p in model.parameters()])
    say("whole steps", equal=found == plain, kind=step.plan.budget_kind if step.plan else None)


def speed(hand_over: HandOver, device: str, quick: bool, name: str) -> None:
    """Seconds of a step, plain and fitted, and what the plan had predicted."""
    import torch

    import lowtide
    from benchmarks.gpu.subjects import SUBJECTS

    say = _sayer(hand_over, network=name)
    subject = SUBJECTS[name](quick)
    for budget in (None, "100% of plain", "70% of plain", "50% of plain"):
        torch.manual_seed(0)
        model = subject.make().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if budget is not None:
            lowtide.fit(model, budget, optimizer=optimizer)
        batch = subject.batch(0, device)
        times = []
        try:
            for number in range(4 if quick else 25):
                _wait(device)
                begun_s = time.perf_counter()
                _step(model, optimizer, batch)
                _wait(device)
                if number >= 3:
                    times.append(time.perf_counter() - begun_s)
        except (lowtide.errors.LowtideError, RuntimeError) as error:
            say("step", budget=budget, refused=f"{type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        found: dict[str, Any] = {"median_s": statistics.median(times), "least_s": min(times)}
        if budget is not None:
            plan = model.lowtide.plan
            found |= {"predicted_s": plan.time_s, "issue_s": sum(r.issue_s for r in plan.record.graph.recipes)}
            lowtide.unfit(model)
        say("step", budget=budget or "plain PyTorch", per_s=subject.tokens / found["median_s"], **found)


def stage(hand_over: HandOver, function: str, device: str, quick: bool, *more: Any) -> None:
    """One stage, in the process that it has for itself."""
    globals()[function](hand_over, device, quick, *more)


def _tight(quick: bool) -> str:
    """A budget that makes plans recompute; of small networks nearly all is persistent."""
    return "100% of plain" if quick else "75% of plain"


def _sayer(hand_over: HandOver, **always: Any) -> Callable[..., None]:
    def say(fact: str, **found: Any) -> None:
        hand_over({"fact": fact, **always, **found})

    return say


def _steps(
    subject: Any, device: str, fit: Callable[[Any, Any], Any] | None, count: int = 5
) -> tuple[tuple[list[str], list[str]], int]:
    """Digests of losses and parameters after some steps, and torch's peak."""
    import torch

    torch.manual_seed(0)
    model = subject.make().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if fit is not None:
        fit(model, optimizer)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    losses = [_digest(_step(model, optimizer, subject.batch(number, device))) for number in range(count)]
    peak_B = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return (losses, [_digest(p) for p in model.parameters()]), peak_B


def _step(model: Any, optimizer: Any, batch: tuple[Any, ...]) -> Any:
    optimizer.zero_grad(set_to_none=True)
    loss = model(*batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _train(model: Any, device: str, count: int) -> list[float]:
    import torch

    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(torch.ones(64, 256, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def _digest(result: Any) -> str:
    import torch

    from lowtide.device.digest import digest

    parts = [result] if isinstance(result, torch.Tensor) else list(result)
    return " ".join(digest(part) for part in parts)


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _child() -> str:
    """What became of a forked process that does nothing with the GPU."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    code: list[int] = []
    waits = threading.Thread(target=lambda: code.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    waits.start()
    waits.join(20)
    if not code:
        os.kill(child, 9)
        return "hung"
    return f"ended with {code[0]}"


BUDGETS = ["100% of plain", "70% of plain", "50% of plain"]
STAGES: dict[str, tuple[Callable[..., None], tuple[Any, ...], float]] = {
    "machine": (machine, (), 240),
    "tenant": (tenant, (), 60),
    "libraries": (libraries, (), 40),
    "bits mlp": (bits, ("mlp", True, BUDGETS), 120),
    "bits gpt": (bits, ("gpt", True, BUDGETS), 240),
    "repeats": (repeats, (), 60),
    "issue": (issue, (), 40),
    "capture": (capture, (), 40),
    "process arena": (process_arena, (), 60),
    "link": (link, (), 60),
    "bits convolutions": (bits, ("convolutions", True, BUDGETS), 180),
    "whole steps": (whole_steps, (), 180),
    "offloading": (offloading, (), 180),
    "bits gpt, default": (bits, ("gpt", False, BUDGETS[1:2]), 120),
    "speed gpt": (speed, ("gpt",), 240),
    "speed convolutions": (speed, ("convolutions",), 180),
}
"""Function, further arguments, and seconds after which it is ended; in the order of their worth."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the stages; 1 where one did not end, or bits differ that should not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="small networks and few bytes")
    parser.add_argument("--only", nargs="+", choices=sorted(STAGES), metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("--out", type=Path, help="a file for the lines, besides the standard output")
    parser.add_argument("--seconds", type=float, default=1700, help="no stage begins after so many")
    chosen = parser.parse_args(arguments)
    begun_s, red = time.perf_counter(), 0
    with contextlib.ExitStack() as stack:
        out = None if chosen.out is None else stack.enter_context(chosen.out.open("a", encoding="utf-8"))

        def emit(line: dict[str, Any]) -> None:
            text = json.dumps(line, default=str)
            print(text, flush=True)
            if out is not None:
                out.write(text + "\n")
                out.flush()

        for name in chosen.only or STAGES:
            left_s = chosen.seconds - (time.perf_counter() - begun_s)
            if left_s <= 0:
                emit({"stage": name, "failure": "no time was left"})
                red += 1
                continue
            function, more, limit_s = STAGES[name]
            environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if "bits" in name or "steps" in name else None
            limits = Limits(elapsed_s=min(limit_s, left_s))
            given = (function.__name__, chosen.device, chosen.quick, *more)
            ended = run(stage, *given, limits=limits, environment=environment)
            for row in ended.rows:
                emit({"stage": name, **row})
            red += sum(row.get("equal") is False and row["fact"] != "plain against plain" for row in ended.rows)
            if ended.failure is not None:
                red += 1
                emit({"stage": name, "failure": ended.failure, "said": ended.errors[-2000:]})
            emit({"stage": name, "fact": "ended", "elapsed_s": round(ended.elapsed_s, 1)})
        emit({"stage": "all", "fact": "done", "elapsed_s": round(time.perf_counter() - begun_s, 1), "red": red})
    return int(red > 0)


if __name__ == "__main__":
    sys.exit(main())
