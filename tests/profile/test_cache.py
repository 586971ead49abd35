"""Measurements on disk survive other processes, damage and interruption."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.device.fingerprint import Fingerprint
from lowtide.ir import file_store
from lowtide.ir.file_store import FileStore
from lowtide.ir.geometry import Geometry
from lowtide.profile.cache import ProfileCache
from lowtide.profile.measurement import Measurement, Result

HERE = Fingerprint(
    torch="2", device="cpu", threads=2, capability="x", mkldnn=True, deterministic=False, dtype="float32"
)
THERE = Fingerprint(
    torch="2", device="cpu", threads=4, capability="x", mkldnn=True, deterministic=False, dtype="float32"
)
GEOMETRY = Geometry("float32", (2, 3), (3, 1))
ONE = Measurement(0.25, (24, 8, -2), (Result((), GEOMETRY, 24, 0), Result((1,), GEOMETRY, 24, None, 0)), 128, "flaw")


def entries(folder: Path) -> int:
    """How many measurements are on disk."""
    return sum(entry.about.entries for entry in ProfileCache(folder).store.entries())


def test_what_is_put_comes_back(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    assert cache.get(HERE, "a") is None
    cache.put(HERE, "a", ONE)
    assert cache.get(HERE, "a") == ONE
    cache.flush()
    again = ProfileCache(tmp_path)
    assert again.get(HERE, "a") == ONE
    assert again.get(THERE, "a") is None
    (entry,) = again.store.entries()
    assert (entry.about.fingerprint, entry.about.entries) == (HERE, 1)
    again.clear()
    assert (again.store.entries(), again.get(HERE, "a")) == ([], None)


def test_it_is_written_now_and_then(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path, period_s=0.0)
    cache.put(HERE, "a", ONE)
    assert entries(tmp_path) == 1


def test_a_file_that_is_the_same_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = ProfileCache(tmp_path)
    written.put(HERE, "a", ONE)
    written.flush()
    (path,) = tmp_path.glob("*.profile")
    first = path.read_bytes()
    path.write_bytes(first)  # by another process
    read: list[str] = []
    inner = FileStore.read
    monkeypatch.setattr(FileStore, "read", lambda store, name: (read.append(name), inner(store, name))[1])
    one, other = ProfileCache(tmp_path), ProfileCache(tmp_path)
    assert (one.get(HERE, "a"), other.get(HERE, "a"), len(read)) == (ONE, ONE, 1)
    one.put(HERE, "b", ONE)
    assert other.get(HERE, "b") is None
    one.flush()
    assert (ProfileCache(tmp_path).get(HERE, "b"), len(read)) == (ONE, 1)
    path.write_bytes(first)
    assert (ProfileCache(tmp_path).get(HERE, "b"), len(read)) == (None, 2)


def test_the_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    assert ProfileCache().store.folder == file_store.cache_folder("profiles") == tmp_path / "profiles"
    monkeypatch.delenv("LOWTIDE_CACHE_DIR")
    assert "lowtide" in str(ProfileCache().store.folder)


def test_a_file_without_measurements_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its digest is right: somebody else wrote it so."""
    cache = ProfileCache(tmp_path)
    cache.put(HERE, "a", ONE)
    cache.flush()
    (entry,) = cache.store.entries()
    cache.store.write(entry.path.stem, entry.about, b'{"entries": 1}')
    fresh = ProfileCache(tmp_path)
    with caplog.at_level(logging.WARNING, "lowtide"):
        assert fresh.get(HERE, "a") is None
    assert "cannot be used" in caplog.text
    assert not entry.path.exists()
    fresh.put(HERE, "b", ONE)
    fresh.flush()
    assert ProfileCache(tmp_path).get(HERE, "b") == ONE


def test_neither_of_two_writers_loses_anything(tmp_path: Path) -> None:
    first, second = ProfileCache(tmp_path), ProfileCache(tmp_path)
    assert first.get(HERE, "b") is second.get(HERE, "a") is None
    first.put(HERE, "a", ONE)
    second.put(HERE, "b", ONE)
    first.flush()
    second.flush()
    assert second.get(HERE, "a") == ONE
    assert entries(tmp_path) == 2


def test_two_processes_at_once(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.profile.test_cache import HERE, ONE\n"
        "from lowtide.profile.cache import ProfileCache\n"
        "cache = ProfileCache(Path(sys.argv[1]), period_s=0.0)\n"
        "for i in range(100): cache.put(HERE, f'{sys.argv[2]}{i}', ONE)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in "ab"]
    assert [w.wait() for w in writers] == [0, 0]
    cache = ProfileCache(tmp_path)
    assert entries(tmp_path) == 200
    assert all(cache.get(HERE, f"{name}{i}") == ONE for name in "ab" for i in range(100))
    assert list(tmp_path.glob("*.unfinished")) == []


def test_a_disk_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = ProfileCache(tmp_path / "file" / "folder")
    cache.put(HERE, "a", ONE)
    with caplog.at_level(logging.WARNING, "lowtide"):
        cache.flush()
    assert "measurements cannot be written to" in caplog.text
    assert cache.get(HERE, "a") == ONE


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ProfileCache(tmp_path)
    cache.put(HERE, "a", ONE)
    cache.flush()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    cache.put(HERE, "b", ONE)
    with monkeypatch.context() as patch:
        patch.setattr(file_store.os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cache.flush()
    assert entries(tmp_path) == 1
    assert list(tmp_path.glob("*.unfinished")) == []
    cache.flush()
    assert entries(tmp_path) == 2


def test_what_is_logged_keeps_nothing_alive(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a kept log record would keep the frames that it passed through, and their tensors."""
    cache = ProfileCache(Path("/proc/nowhere"))
    cache.put(HERE, "key", ONE)
    cache.flush()
    assert "measurements cannot be written to" in caplog.text
    assert not any(isinstance(a, BaseException) for r in caplog.records for a in r.args or ())
