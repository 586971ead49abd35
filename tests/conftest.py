"""Settings for every test: property tests find the same examples every time, and no test looks at the clock."""

import gc
import os
import signal
import sys
from pathlib import Path

import platformdirs
import pytest
from hypothesis import HealthCheck, settings

from lowtide.placers import base

settings.register_profile(
    "lowtide",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=int(os.environ.get("LOWTIDE_EXAMPLES", "100")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lowtide")

# A suite started in the background of a shell inherits an ignored SIGINT; tests of Ctrl-C need Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Every test makes its plans itself; those of the plan cache turn it on.
os.environ.setdefault("LOWTIDE_PLAN_CACHE", "0")

# Tests that bring an empty cache still share one build of the arena.
os.environ.setdefault("LOWTIDE_SHIM_DIR", str(Path(platformdirs.user_cache_dir("lowtide")) / "shim"))

# Files that take longest, longest first: what is begun last should be short, or one worker waits for the other.
_LONG = (
    "zoo/test_zoo.py",
    "planners/test_contract.py",  # needs no arena while the first worker builds it
    "test_examples.py",
    "frontends/test_wall.py",
    "semantics/test_passes.py",
    "frontends/test_equality.py",
    "docs/test_code.py",
    "runtime/test_routines.py",
    "frontends/test_repeated_layers.py",
    "frontends/test_max_batch.py",
    "frontends/test_shapes.py",
    "ops/test_contract.py",
    "frontends/test_shared_budget.py",
    "semantics/test_structures.py",
    "planners/test_fetches.py",
    "docs/test_build.py",
    "planners/test_planning_rows.py",
    "device/test_cuda.py",
)
_RANK = {str(Path(__file__).parent / name): rank for rank, name in enumerate(_LONG)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; otherwise as they come."""
    items.sort(key=lambda item: _RANK.get(str(item.path), len(_LONG)))


_IMPORTED = [0]  # modules, when the heap was frozen last


def pytest_runtest_setup(item: pytest.Item) -> None:  # noqa: ARG001
    """What imports brought stays, so that a collection need not look through it: tests and fits call for many."""
    shim = sys.modules.get("lowtide.device.shim")
    module = shim.loaded() if shim is not None else None
    if module is not None and module.levels():  # a step that nobody ends lives in a cycle, which may be frozen
        gc.unfreeze()
        gc.collect()
        _IMPORTED[0] = 0
    elif len(sys.modules) > _IMPORTED[0] + 100:
        gc.collect()
        gc.freeze()
        _IMPORTED[0] = len(sys.modules)


@pytest.fixture(autouse=True)
def _brief_placing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tests train, addresses are searched for a twelfth of a second, not for one."""
    if {"frontends", "runtime", "semantics"}.intersection(request.path.parts):
        monkeypatch.setattr(base, "_WORK", 100_000)


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for what any test of this run measures: of all workers together, and never the user's own."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "measured"
