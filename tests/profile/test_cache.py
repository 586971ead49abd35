"""Measurements on disk survive other processes, damage and interruption."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from lowtide.device.fingerprint import Fingerprint
from lowtide.ir.geometry import Geometry
from lowtide.profile import cache as cache_module
from lowtide.profile.cache import ProfileCache, default_folder
from lowtide.profile.measurement import Measurement, Result

HERE = Fingerprint(
    torch="2", device="cpu", threads=2, capability="x", mkldnn=True, deterministic=False, dtype="float32"
)
THERE = Fingerprint(
    torch="2", device="cpu", threads=4, capability="x", mkldnn=True, deterministic=False, dtype="float32"
)
GEOMETRY = Geometry("float32", (2, 3), (3, 1))
ONE = Measurement(0.25, (24, 8, -2), (Result((), GEOMETRY, 24, 0), Result((1,), GEOMETRY, 24, None, 0)), 128, "flaw")


def test_what_is_put_comes_back(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    assert cache.get(HERE, "a") is None
    cache.put(HERE, "a", ONE)
    assert cache.get(HERE, "a") == ONE
    cache.flush()
    again = ProfileCache(tmp_path)
    assert again.get(HERE, "a") == ONE
    assert again.get(THERE, "a") is None
    assert (again.entries(), again.size_B() > 0) == (1, True)
    again.clear()
    assert (again.entries(), again.size_B(), again.get(HERE, "a")) == (0, 0, None)


def test_it_is_written_now_and_then(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path, period_s=0.0)
    cache.put(HERE, "a", ONE)
    assert ProfileCache(tmp_path).entries() == 1


def test_a_file_that_is_the_same_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = ProfileCache(tmp_path)
    written.put(HERE, "a", ONE)
    written.flush()
    monkeypatch.setattr(cache_module, "_READ", {})
    decoded: list[bytes] = []
    inner = cache_module.unsealed
    monkeypatch.setattr(cache_module, "unsealed", lambda data, kind: (decoded.append(data), inner(data, kind))[1])
    one, other = ProfileCache(tmp_path), ProfileCache(tmp_path)
    assert (one.get(HERE, "a"), other.get(HERE, "a"), len(decoded)) == (ONE, ONE, 1)
    one.put(HERE, "b", ONE)
    assert other.get(HERE, "b") is None
    one.flush()
    assert (ProfileCache(tmp_path).get(HERE, "b"), len(decoded)) == (ONE, 1)
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(decoded[0])  # by another process
    assert (ProfileCache(tmp_path).get(HERE, "b"), len(decoded)) == (None, 2)


def test_the_folder_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    assert default_folder() == tmp_path / "profiles"
    assert ProfileCache().folder == tmp_path / "profiles"
    monkeypatch.delenv("LOWTIDE_CACHE_DIR")
    assert "lowtide" in str(default_folder())


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b'{"version": "one"}', b"[]"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    cache = ProfileCache(tmp_path)
    cache.put(HERE, "a", ONE)
    cache.flush()
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(damage)
    fresh = ProfileCache(tmp_path)
    with caplog.at_level(logging.WARNING, "lowtide"):
        assert fresh.get(HERE, "a") is None
    assert "damaged" in caplog.text
    assert len(list(tmp_path.glob("*.damaged*"))) == 1
    fresh.put(HERE, "b", ONE)
    fresh.flush()
    assert ProfileCache(tmp_path).get(HERE, "b") == ONE
    fresh.clear()
    assert list(tmp_path.glob("*.damaged*")) == []


def test_another_version_is_not_read(tmp_path: Path) -> None:
    cache = ProfileCache(tmp_path)
    cache.put(HERE, "a", ONE)
    cache.flush()
    (path,) = tmp_path.glob("*.json")
    path.write_text(path.read_text().replace('"version":3', '"version":99'))
    assert ProfileCache(tmp_path).entries() == 0


def test_neither_of_two_writers_loses_anything(tmp_path: Path) -> None:
    first, second = ProfileCache(tmp_path), ProfileCache(tmp_path)
    assert first.get(HERE, "b") is second.get(HERE, "a") is None
    first.put(HERE, "a", ONE)
    second.put(HERE, "b", ONE)
    first.flush()
    second.flush()
    assert second.get(HERE, "a") == ONE
    assert ProfileCache(tmp_path).entries() == 2


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
    assert cache.entries() == 200
    assert all(cache.get(HERE, f"{name}{i}") == ONE for name in "ab" for i in range(100))
    assert list(tmp_path.glob("*.tmp")) == list(tmp_path.glob("*.damaged*")) == []


def test_a_disk_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = ProfileCache(tmp_path / "file" / "folder")
    cache.put(HERE, "a", ONE)
    with caplog.at_level(logging.WARNING, "lowtide"):
        cache.flush()
    assert "could not be saved" in caplog.text
    assert cache.get(HERE, "a") == ONE


def test_a_lock_that_is_never_released_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_PATIENCE_s", 0.01)
    cache = ProfileCache(tmp_path)
    cache.put(HERE, "a", ONE)
    cache.flush()
    (path,) = tmp_path.glob("*.json")
    cache.put(HERE, "b", ONE)
    with FileLock(f"{path}.lock"), caplog.at_level(logging.WARNING, "lowtide"):
        cache.flush()
    assert "could not be saved" in caplog.text
    cache.flush()
    assert ProfileCache(tmp_path).entries() == 2


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ProfileCache(tmp_path)
    cache.put(HERE, "a", ONE)
    cache.flush()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    cache.put(HERE, "b", ONE)
    with monkeypatch.context() as patch:
        patch.setattr(cache_module.os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cache.flush()
    assert ProfileCache(tmp_path).entries() == 1
    assert list(tmp_path.glob("*.tmp")) == []
    cache.flush()
    assert ProfileCache(tmp_path).entries() == 2


def test_what_is_logged_keeps_nothing_alive(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a kept log record would keep the frames that it passed through, and their tensors."""
    cache = ProfileCache(Path("/proc/nowhere"))
    cache.put(HERE, "key", ONE)
    cache.flush()
    assert "could not be saved" in caplog.text
    assert not any(isinstance(a, BaseException) for r in caplog.records for a in r.args or ())
