"""The GPU's arena as torch would use it, on a simulated GPU: the module, its entries, and its answers.

The simulated GPU is a runtime library of its own (`fake_cudart.cpp`); each test has a device of its own in it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lowtide.device import cuda, cuda_allocator, cuda_answers, cuda_shim, shim_build
from lowtide.device.cuda_module import CudaModule
from lowtide.device.observer import observe
from lowtide.errors import ArenaError, BudgetError, ShimUnavailable
from lowtide.units import parse_budget

MiB = 2**20
MAIN, SIDE = 0, 32  # streams
ROOT = Path(__file__).resolve().parents[2]
_devices = itertools.count(10)


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated GPU's runtime library."""
    try:
        command = shim_build.compiler()
    except ShimUnavailable as error:
        pytest.skip(str(error))
    library = tmp_path_factory.mktemp("fake") / "libcudart_simulated.so"
    folders = [f"-I{ROOT / 'src/core'}", f"-I{ROOT / 'src/lowtide/_shim'}", f"-I{ROOT / 'tests/core'}"]
    source = str(Path(__file__).parent / "fake_cudart.cpp")
    subprocess.run(
        [*command, "-std=c++17", "-O1", "-shared", "-fPIC", *folders, source, "-o", str(library)], check=True
    )
    return library


@pytest.fixture(scope="session")
def gpu(fake: Path) -> CudaModule:
    module = cuda_shim.load()
    module.use_runtime(str(fake))
    return module


@pytest.fixture
def device(gpu: CudaModule) -> int:
    """A device of 4 MiB that nobody has used."""
    number = next(_devices)
    gpu.set_budget(number, 4 * MiB, 0.0, 64 * 1024)
    return number


def test_the_limit_refuses_as_torch_does(gpu: CudaModule, device: int) -> None:
    held = gpu.allocate(3 * MiB, device, MAIN)
    assert held % 512 == 0
    with pytest.raises(torch.OutOfMemoryError, match=r"budget of 4\.00 MiB is spent: .*asked for 2\.00 MiB"):
        gpu.allocate(2 * MiB, device, MAIN)
    gpu.release(held, MAIN)
    held = gpu.allocate(4 * MiB, device, MAIN)
    gpu.release(held, MAIN)
    assert gpu.allocate(0, device, MAIN) == 0
    assert gpu.slab(device).check() == ""


def test_a_block_that_another_stream_uses_is_parked(gpu: CudaModule, device: int, fake: Path) -> None:
    simulated = ctypes.CDLL(str(fake))
    held = gpu.allocate(MiB, device, MAIN)
    simulated.fake_issue(SIDE)
    gpu.use(held, SIDE)
    gpu.release(held, MAIN)
    seen = cuda_answers.memory_stats(gpu, device)
    assert seen["allocated_bytes"]["all"]["current"] == 0
    assert seen["active_bytes"]["all"]["current"] == MiB
    simulated.fake_finish(SIDE)
    gpu.settle(device, False)
    assert cuda_answers.memory_stats(gpu, device)["active_bytes"]["all"]["current"] == 0


def test_segments_find_their_planned_places(gpu: CudaModule, device: int) -> None:
    slab = gpu.slab(device)
    table = gpu.Table([1000, 4096], [512, 2048], [0, 1, 2], ["mm", "add"], cuda.ALIGNMENT_B)
    slab.plan_top_B = 8192
    gpu.engage(slab)
    gpu.enter(table)
    held = []
    for statement, size_B in enumerate((1000, 4096)):
        gpu.at(statement)
        held.append(gpu.allocate(size_B, device, MAIN))
    assert gpu.leave() == 2
    gpu.disengage(slab)
    assert [address - slab.base for address in held] == [512, 2048]
    assert [block[3] for block in slab.blocks()] == ["mm", "add"]
    for address in held:
        gpu.release(address, MAIN)


def test_a_budget_is_a_share_or_what_the_device_has(gpu: CudaModule) -> None:
    whole, most = next(_devices), next(_devices)
    gpu.set_budget(whole, 0, 0.25, 0)
    assert gpu.slab(whole).stats()["capacity_B"] == 256 * MiB  # of the simulated GiB
    gpu.set_budget(most, 2**40, 0.0, 0)
    with pytest.raises(RuntimeError, match=r"cudaMalloc failed: out of memory .*Name a smaller budget"):
        gpu.allocate(512, most, MAIN)
    with pytest.raises(RuntimeError, match="reserved already"):
        gpu.set_budget(whole, 4 * MiB, 0.0, 0)


def test_answers_have_the_shape_of_torchs(gpu: CudaModule, device: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through torch's own functions, where this torch is built without CUDA."""
    before = cuda_answers.memory_stats(gpu, device)
    assert before["reserved_bytes"]["all"]["current"] == 0
    asked: list[Any] = []

    def driver(device: Any = None) -> tuple[int, int]:
        asked.append(device)
        return 7 * MiB, 9 * MiB

    for name in ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats", "_cuda_resetAccumulatedMemoryStats"):
        monkeypatch.setattr(torch._C, name, None, raising=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", driver)
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda_allocator, "cuda_index", lambda found: found)
    monkeypatch.setattr(torch.cuda.memory, "_get_device_index", lambda found, **_: found)
    with cuda_answers.installed(gpu):
        assert torch.cuda.mem_get_info(device) == (7 * MiB, 9 * MiB)
        held = gpu.allocate(1000, device, MAIN)
        more = gpu.allocate(MiB, device, MAIN)
        gpu.release(more, MAIN)
        assert torch.cuda.memory_allocated(device) == 1024
        assert torch.cuda.max_memory_allocated(device) == MiB + 1024
        assert torch.cuda.memory_reserved(device) == torch.cuda.max_memory_reserved(device) == 4 * MiB
        assert torch.cuda.memory_stats(device)["requested_bytes.all.current"] == 1000
        assert torch.cuda.mem_get_info(device) == (4 * MiB - 1024, 9 * MiB)
        assert "Allocated memory" in torch.cuda.memory_summary(device)
        torch.cuda.reset_peak_memory_stats(device)
        assert torch.cuda.max_memory_allocated(device) == 1024
        torch.cuda.reset_accumulated_memory_stats(device)
        assert torch.cuda.memory_stats(device)["allocation.all.freed"] == 0
        gpu.release(held, MAIN)
    assert torch.cuda.mem_get_info is driver
    assert torch._C._cuda_memoryStats is None
    assert asked


def test_an_observer_sees_the_arenas_events(gpu: CudaModule, device: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_installed", gpu)
    before = gpu.allocate(4096, device, MAIN)
    with observe("cuda") as seen:
        held = gpu.allocate(1000, device, MAIN)
        with pytest.raises(torch.OutOfMemoryError):
            gpu.allocate(8 * MiB, device, MAIN)
        gpu.release(before, MAIN)  # allocated before: no event
        gpu.release(held, MAIN)
    assert [(event.address, event.size_B) for event in seen.events] == [(held, 1000), (held, -1000)]
    assert (seen.peak_B, seen.end_B) == (1000, 0)
    assert not gpu.is_logging()


def test_the_entries_are_there_by_name(gpu: CudaModule) -> None:
    """As `torch.cuda.memory.CUDAPluggableAllocator` looks them up."""
    library, entries = ctypes.CDLL(gpu.__file__), gpu.entries()
    for name in ("malloc", "free", "record_stream"):
        assert ctypes.cast(getattr(library, f"lowtide_cuda_{name}"), ctypes.c_void_p).value == entries[name]
    assert entries["begin_pool"]


def test_a_runtime_that_is_none(gpu: CudaModule, fake: Path) -> None:
    with pytest.raises(RuntimeError, match="lacks cudaGetDevice"):
        gpu.use_runtime(ctypes.util.find_library("m") or "libm.so.6")
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        gpu.use_runtime("/nowhere/libcudart.so")
    gpu.use_runtime(str(fake))


@pytest.mark.parametrize(
    ("budget", "error", "says"),
    [
        ("60% of plain", BudgetError, "install_cuda takes bytes"),
        ("1MiB", BudgetError, "below the 2 MiB"),
        ("much", BudgetError, "cannot read the budget"),
    ],
)
def test_budgets_that_make_no_sense(budget: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        cuda.install_cuda(budget)


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
def test_a_torch_without_cuda_is_told_so() -> None:
    with pytest.raises(ShimUnavailable, match="is built without CUDA"):
        cuda.install_cuda("6GiB")
    assert cuda.active_module() is None
    assert cuda.level() == "accounted"


def test_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ArenaError, match="CUDA is in use already"):
        cuda.install_cuda("6GiB")


def test_installing_asks_torch_for_everything(gpu: CudaModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of `install_cuda`, up to torch's own interface, which a torch without CUDA lacks."""
    given: dict[str, Any] = {}

    def change(library: str, entries: dict[str, int]) -> None:
        given["library"], given["entries"] = library, entries

    def prepare(budget: Any) -> CudaModule:
        given["budget"] = budget
        return gpu

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cuda, "_installed", None)
    monkeypatch.setattr(cuda, "prepared", prepare)
    monkeypatch.setattr(cuda_allocator, "change_cuda_allocator", change)
    plain: Callable[..., Any] = torch.cuda.mem_get_info
    try:
        cuda.install_cuda("64MiB")
        assert cuda.level() == "planned"
        assert given == {"library": gpu.__file__, "entries": gpu.entries(), "budget": parse_budget("64MiB")}
        with pytest.raises(ArenaError, match="already"):
            cuda.install_cuda("64MiB")
        with pytest.raises(ArenaError, match="second one"):
            cuda.cap(64 * MiB, object())
    finally:
        cuda._answers.close()
    assert torch.cuda.mem_get_info is plain
