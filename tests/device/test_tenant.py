"""Arenas inside torch's CUDA allocator, on a simulated GPU, through torch's own interface of its allocator."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lowtide.device import shim_build, tenant_shim
from lowtide.device.arena import Arena, Table, fast_at, nothing_engaged
from lowtide.device.tenant_module import TenantModule
from lowtide.errors import ArenaError, BudgetWarning, ShimUnavailable
from lowtide.session.budget_scope import BudgetScope

MiB = 2**20
MAIN, SIDE = 0, 32  # streams
ROOT = Path(__file__).resolve().parents[2]


class Simulated:
    """The simulated GPU, and torch's library on it."""

    def __init__(self, folder: Path) -> None:
        command = [*shim_build.compiler(), "-O1", "-shared", "-fPIC"]
        command += [f"-I{ROOT / name}" for name in ("src/core", "src/lowtide/_shim", "tests/core")]
        self.path = folder / "libcudart_simulated.so"
        source = ROOT / "tests/device/fake_cudart.cpp"
        subprocess.run([*command, "-std=c++17", str(source), "-o", str(self.path)], check=True)
        self.runtime = ctypes.CDLL(str(self.path), mode=ctypes.RTLD_GLOBAL)
        self.runtime.fake_used.restype = ctypes.c_size_t
        self.runtime.fake_make_touchable()
        macros = folder / "include" / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"  # not in wheels for processors
        macros.parent.mkdir(parents=True)
        macros.write_text("#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n")
        library = folder / "libc10_cuda.so"
        torch_folder = Path(torch.__file__).parent
        headers = [
            f"-I{folder / 'include'}",
            *(f"-I{p}" for p in shim_build.cuda_headers(shim_build.TENANT)),
            "-isystem",
            str(torch_folder / "include"),
        ]
        subprocess.run(
            [
                *(*command, "-std=c++20", *shim_build.probed(shim_build.TENANT), *headers),
                *(str(ROOT / "tests/device/fake_c10_cuda.cpp"), f"-L{torch_folder / 'lib'}", "-lc10"),
                *(f"-L{folder}", "-l:libcudart_simulated.so", "-Wl,-soname,libc10_cuda.so", "-o", str(library)),
            ],
            check=True,
        )
        self.torch = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        for name, kind in (
            *(("c10_owns", ctypes.c_bool), ("c10_used_on", ctypes.c_size_t), ("c10_bytes", ctypes.c_size_t)),
            *(("c10_segments", ctypes.c_size_t), ("c10_allocated", ctypes.c_int64)),
            *(("c10_make_storage", ctypes.c_size_t), ("c10_bytes_of", ctypes.c_size_t)),
        ):
            getattr(self.torch, name).restype = kind
        self.folder = folder

    def owns(self, address: int) -> bool:
        """Whether torch's own allocator has the block."""
        return bool(self.torch.c10_owns(ctypes.c_size_t(address)))

    def use_stream(self, stream: int) -> None:
        """torch's current stream of this thread."""
        self.torch.c10_use_stream(ctypes.c_size_t(stream))


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    try:
        return Simulated(tmp_path_factory.mktemp("tenant"))
    except ShimUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def tenant(gpu: Simulated) -> TenantModule:
    return tenant_shim.load_with(str(gpu.path), [gpu.folder])


@pytest.fixture
def make(tenant: TenantModule, gpu: Simulated) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []
    gpu.use_stream(MAIN)
    before_B = gpu.torch.c10_bytes()

    def make(
        capacity_B: int = 4 * MiB, small_B: int = 64 * 1024, persistent_B: int = MiB, all_threads: bool = False
    ) -> Any:
        made.append(tenant.Slab(capacity_B, 512, small_B, persistent_B, all_threads))
        return made[-1]

    yield make
    for arena in made:
        assert arena.check() == ""
        assert arena.engagements == 0
        arena.close()
    made.clear()
    assert gpu.torch.c10_bytes() == before_B


def test_an_arena_is_one_block_of_torchs(make: Callable[..., Any], gpu: Simulated) -> None:
    before = gpu.torch.c10_segments()
    arena = make()
    assert gpu.owns(arena.base)
    assert arena.base % 512 == 0
    assert gpu.torch.c10_segments() == before + 1
    assert gpu.torch.c10_allocated() >= 4 * MiB


def test_a_thread_that_is_not_engaged_gets_what_torch_gives(
    make: Callable[..., Any], tenant: TenantModule, gpu: Simulated
) -> None:
    arena = make()
    held = tenant.allocate(MiB)
    assert gpu.owns(held)
    tenant.engage(arena)
    mine = tenant.allocate(MiB)
    raw = tenant.raw_allocate(MiB)
    assert [gpu.owns(p) for p in (mine, raw)] == [False, False]
    assert arena.stats()["in_use_B"] == 2 * MiB
    tenant.suspend()
    also = tenant.allocate(MiB)
    tenant.resume()
    assert gpu.owns(also)
    tenant.disengage(arena)
    tenant.raw_release(raw)
    for address in (held, mine, also):
        tenant.release(address)
    assert arena.stats()["in_use_B"] == 0


def test_segments_find_their_planned_places(make: Callable[..., Any], tenant: TenantModule) -> None:
    arena = make()
    table = tenant.Table([1000, 4096], [512, 2048], [0, 1, 2], ["mm", "add"], 512)
    arena.plan_top_B = 8192
    tenant.engage(arena)
    tenant.enter(table)
    held = []
    for statement, size_B in enumerate((1000, 4096)):
        tenant.at(statement)
        held.append(tenant.allocate(size_B))
    assert tenant.leave() == 2
    tenant.disengage(arena)
    assert [address - arena.base for address in held] == [512, 2048]
    assert [block[3] for block in arena.blocks()] == ["mm", "add"]
    for address in held:
        tenant.release(address)


def test_a_planned_place_off_the_alignment_is_refused(tenant: TenantModule) -> None:
    with pytest.raises(ValueError, match="alignment"):
        tenant.Table([1000], [64], [0, 1], ["mm"], 512)


def test_past_the_arena_there_is_torchs_own_error_or_a_spill(
    make: Callable[..., Any], tenant: TenantModule, gpu: Simulated
) -> None:
    arena = make(persistent_B=0)
    tenant.engage(arena)
    with pytest.raises(torch.OutOfMemoryError, match=r"budget of 4\.00 MiB is spent: .*asked for 8\.00 MiB"):
        tenant.allocate(8 * MiB)
    arena.strict = False
    held = tenant.allocate(8 * MiB)
    assert gpu.owns(held)
    tenant.release(held)
    assert arena.stats()["spills"] == 1
    arena.plan_top_B = 512
    tenant.enter(tenant.Table([512], [0], [0, 1], ["mm"], 512))
    tenant.at(0)
    with pytest.raises(torch.OutOfMemoryError, match=r"'mm' .statement 0. asked for"):
        tenant.allocate(8 * MiB)
    tenant.leave()
    tenant.disengage(arena)


def test_an_arena_that_the_gpu_does_not_have(tenant: TenantModule) -> None:
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        tenant.Slab(2**40, 512, 0, 0, False)


def test_other_streams_wait_for_what_a_block_was_used_for(
    make: Callable[..., Any], tenant: TenantModule, gpu: Simulated
) -> None:
    arena = make(persistent_B=0)
    tenant.engage(arena)
    held = tenant.allocate(3 * MiB)
    work = gpu.runtime.fake_issue(ctypes.c_size_t(MAIN))
    tenant.release(held)
    gpu.use_stream(SIDE)
    again = tenant.allocate(3 * MiB)
    assert again == held
    assert tenant.waits(arena) == 1
    assert gpu.runtime.fake_comes_after(ctypes.c_size_t(SIDE), ctypes.c_size_t(MAIN), ctypes.c_int64(work))
    later = gpu.runtime.fake_issue(ctypes.c_size_t(SIDE))
    gpu.use_stream(MAIN)
    tenant.release(again)  # on whatever stream this is said: the block is SIDE's
    last = tenant.allocate(3 * MiB)
    assert gpu.runtime.fake_comes_after(ctypes.c_size_t(MAIN), ctypes.c_size_t(SIDE), ctypes.c_int64(later))
    tenant.release(last)
    tenant.disengage(arena)


def test_a_block_that_another_stream_uses_is_parked_and_no_event_is_asked_in_a_capture(
    make: Callable[..., Any], tenant: TenantModule, gpu: Simulated
) -> None:
    arena = make(persistent_B=0)
    tenant.engage(arena)
    held = tenant.allocate(3 * MiB)
    gpu.runtime.fake_issue(ctypes.c_size_t(SIDE))
    tenant.record_stream(held, SIDE)
    tenant.release(held)
    assert tenant.parked(arena) == 1
    gpu.torch.c10_begin_pool(ctypes.c_size_t(SIDE))
    gpu.runtime.fake_capture(ctypes.c_bool(True))
    gpu.runtime.fake_finish(ctypes.c_size_t(SIDE))
    small = tenant.allocate(1024)  # MAIN does not allocate to the pool
    assert not gpu.owns(small)
    assert tenant.parked(arena) == 1
    gpu.use_stream(SIDE)
    captured = tenant.allocate(1024)
    assert gpu.owns(captured)
    gpu.use_stream(MAIN)
    gpu.runtime.fake_capture(ctypes.c_bool(False))
    gpu.torch.c10_end_pool()
    tenant.settle(arena, False)
    assert tenant.parked(arena) == 0
    for address in (small, captured):
        tenant.release(address)
    tenant.disengage(arena)


def test_torch_is_told_of_streams_that_use_its_own_blocks(tenant: TenantModule, gpu: Simulated) -> None:
    plain = tenant.allocate(MiB)
    tenant.record_stream(plain, SIDE)
    assert gpu.torch.c10_used_on(ctypes.c_size_t(plain)) == SIDE
    tenant.release(plain)


def test_events_are_noted_of_torchs_blocks_too(make: Callable[..., Any], tenant: TenantModule) -> None:
    arena = make()
    assert tenant.log_start()
    outside = tenant.allocate(4096)
    tenant.engage(arena)
    inside = tenant.allocate(1000)
    tenant.disengage(arena)
    tenant.release(outside)
    tenant.release(inside)
    seen = [(address, size_B) for _, address, size_B in tenant.log_stop()]
    assert seen == [(outside, 4096), (inside, 1000), (outside, -4096), (inside, -1000)]


def test_several_arenas_and_threads(make: Callable[..., Any], tenant: TenantModule, gpu: Simulated) -> None:
    first, second = make(), make()
    tenant.engage(first)
    tenant.engage(second)
    one = tenant.allocate(4096)
    tenant.disengage(second)
    two = tenant.allocate(4096)
    assert (second.stats()["in_use_B"], first.stats()["in_use_B"]) == (4096, 4096)
    found: list[int] = []

    def elsewhere() -> None:
        found.append(tenant.allocate(4096))
        tenant.release(two)  # from any thread

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert gpu.owns(found[0])
    assert first.stats()["in_use_B"] == 0
    assert first.stats()["outside"] == 1
    tenant.disengage(first)
    for address in (one, found[0]):
        tenant.release(address)


def test_every_thread_is_served_where_an_arena_says_so(
    make: Callable[..., Any], tenant: TenantModule, gpu: Simulated
) -> None:
    arena = make(all_threads=True)
    tenant.engage(arena)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(tenant.allocate(4096)))
    thread.start()
    thread.join()
    assert not gpu.owns(found[0])
    assert arena.stats()["workers"] == 1
    tenant.disengage(arena)
    tenant.release(found[0])


def test_a_block_outlives_its_arena_and_the_memory_goes_with_the_last(tenant: TenantModule, gpu: Simulated) -> None:
    before_B = gpu.torch.c10_bytes()
    arena = tenant.Slab(4 * MiB, 512, 0, 0, False)
    tenant.engage(arena)
    held = tenant.allocate(MiB)
    tenant.disengage(arena)
    arena.close()
    assert gpu.torch.c10_bytes() == before_B + 4 * MiB
    del arena
    tenant.release(held)
    assert gpu.torch.c10_bytes() == before_B


def test_what_another_stream_was_given_is_waited_for_before_torch_has_the_block_again(
    tenant: TenantModule, gpu: Simulated
) -> None:
    arena = tenant.Slab(4 * MiB, 512, 0, 0, False)
    tenant.engage(arena)
    gpu.use_stream(SIDE)
    held = tenant.allocate(MiB)
    work = gpu.runtime.fake_issue(ctypes.c_size_t(SIDE))
    tenant.release(held)
    gpu.use_stream(MAIN)
    tenant.disengage(arena)
    assert not gpu.runtime.fake_comes_after(ctypes.c_size_t(MAIN), ctypes.c_size_t(SIDE), ctypes.c_int64(work))
    arena.close()
    assert gpu.runtime.fake_comes_after(ctypes.c_size_t(MAIN), ctypes.c_size_t(SIDE), ctypes.c_int64(work))


def test_a_library_that_asks_how_much_is_free_hears_of_the_arena(
    make: Callable[..., Any], tenant: TenantModule
) -> None:
    arena = make(small_B=0, persistent_B=0)
    assert tenant.largest_workspace_B(0) == 12345
    tenant.engage(arena)
    assert tenant.largest_workspace_B(0) == 4 * MiB
    tenant.disengage(arena)


def test_a_block_is_shared_with_another_process_as_a_part_of_its_arena(
    make: Callable[..., Any], tenant: TenantModule
) -> None:
    arena = make()
    tenant.engage(arena)
    held = tenant.allocate(4096)
    tenant.disengage(arena)
    assert tenant.base_of(held) == (arena.base, 4 * MiB)
    assert tenant.share(held) == held - arena.base
    tenant.release(held)


def test_a_forked_child_releases_and_is_served_by_torch(
    make: Callable[..., Any], tenant: TenantModule, gpu: Simulated
) -> None:
    arena = make()
    tenant.engage(arena)
    held = tenant.allocate(4096)
    child = os.fork()
    if child == 0:
        outside = tenant.allocate(4096)
        tenant.release(held)
        os._exit(0 if gpu.owns(outside) and tenant.levels() == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert arena.stats()["in_use_B"] == 4096
    tenant.release(held)
    tenant.disengage(arena)


def test_known_functions_are_those_of_this_torch() -> None:
    header = (Path(torch.__file__).parent / "include" / shim_build.ALLOCATOR_HEADER).read_text(encoding="utf-8")
    found = shim_build.allocator_functions(header)
    assert {"raw_alloc", "cacheInfo", "memcpyAsync", "setCheckpointPoolState", "name"} <= found
    assert found <= shim_build.KNOWN_FUNCTIONS
    stranger = header.replace("virtual void* raw_alloc(", "virtual void* raw_brew(")
    assert shim_build.allocator_functions(stranger) - shim_build.KNOWN_FUNCTIONS == {"raw_brew"}


def test_a_storage_moves_into_an_arena_and_out_under_everything_that_sees_it(
    make: Callable[..., Any], tenant: TenantModule, gpu: Simulated
) -> None:
    arena = make()
    content = bytes(range(256)) * 16
    storage = gpu.torch.c10_make_storage(ctypes.c_size_t(len(content)))

    def address() -> int:
        return int(gpu.torch.c10_bytes_of(ctypes.c_size_t(storage)))

    ctypes.memmove(address(), content, len(content))
    assert tenant.objection(storage) == ""
    assert tenant.offset_in(storage, arena) == -1
    places = (tenant.PERSISTENT, 1024, tenant.GENERAL)
    offsets = []
    for where_B in places:
        assert tenant.relocate(storage, arena, where_B)
        offsets.append(tenant.offset_in(storage, arena))
        assert address() == arena.base + offsets[-1]
        assert ctypes.string_at(address(), len(content)) == content
    assert offsets[1] == 1024
    assert offsets[0] >= 4 * MiB - 64 * 1024 - MiB
    assert arena.stats()["in_use_B"] == len(content)
    assert not tenant.relocate(storage, arena, 4 * MiB)  # it does not fit there, and stays
    assert tenant.relocate(storage, None, tenant.GENERAL)
    assert gpu.owns(address())
    assert ctypes.string_at(address(), len(content)) == content
    gpu.torch.c10_drop_storage(ctypes.c_size_t(storage))
    assert arena.stats()["in_use_B"] == 0


def test_arenas_of_the_rest_of_lowtide_are_on_the_gpu(
    tenant: TenantModule, gpu: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_shim, "load", lambda: tenant)
    before_B = gpu.torch.c10_bytes()
    arena = Arena(4 * MiB + 100, small_zone_B=1000, persistent_B=100, device="cuda")
    assert (arena.capacity_B, arena.small_zone_B, arena.persistent_B) == (4 * MiB, 1024, 512)
    arena.plan_top_B = 5000
    assert arena.plan_top_B == 5120
    table = Table([4096], [512], [0, 1], ["mm"], "cuda")
    with arena.engaged():
        arena.enter(table)
        fast_at("cuda")(0)
        held = tenant.allocate(4096)
        assert arena.leave() == 1
        with nothing_engaged():
            outside = tenant.allocate(4096)
    assert [(b.offset_B, b.statement) for b in arena.blocks()] == [(512, "mm")]
    assert gpu.owns(outside)
    for address in (held, outside):
        tenant.release(address)
    with pytest.raises(ArenaError, match="CUDA out of memory"):
        Arena(2**40, small_zone_B=0, persistent_B=0, device="cuda")
    arena.close()
    assert gpu.torch.c10_bytes() == before_B


def test_without_cuda_budgets_on_a_gpu_are_capped_and_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_shim, "_module", None)
    monkeypatch.setattr(tenant_shim, "_refusal", None)
    monkeypatch.setattr(torch.version, "cuda", None)
    scope = BudgetScope("step")
    monkeypatch.setattr(BudgetScope, "device", "cuda")
    with pytest.warns(BudgetWarning, match="the budget is capped and not enforced: torch .* is built without CUDA"):
        assert not scope.encloses("cuda")
    assert not scope.encloses("cpu")
