"""One compiled arena for every test of this folder, and arenas of a few MiB on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lowtide.device import shim
from lowtide.device.arena import Arena
from lowtide.device.shim_module import ShimModule
from lowtide.errors import ShimUnavailable

MiB = 2**20


@pytest.fixture(scope="session")
def module() -> ShimModule:
    """The compiled module; tests of it are skipped where it cannot be had."""
    try:
        return shim.load()
    except ShimUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def make_arena(module: ShimModule) -> Iterator[Callable[..., Arena]]:
    """Makes arenas that are whole, and engaged by nobody, when the test is over."""
    assert module.is_in_force()
    made: list[Arena] = []

    def make(capacity_B: int = 4 * MiB, **options: Any) -> Arena:
        made.append(Arena(capacity_B, **{"small_zone_B": 64 * 1024, "persistent_B": MiB} | options))
        return made[-1]

    yield make
    for arena in made:
        assert arena.slab.check() == ""
        assert arena.slab.engagements == 0
        arena.close()


@pytest.fixture
def arena(make_arena: Callable[..., Arena]) -> Arena:
    """4 MiB, of which 1 MiB for persistent storages and 64 KiB for small requests."""
    return make_arena()
