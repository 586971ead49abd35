"""The store of small files: bounded, safe against damage, and a disk that fails costs a line in the log."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec
import pytest
from filelock import FileLock

from lowtide.ir.file_store import FileStore


class About(msgspec.Struct, frozen=True):
    """What the files of these tests are about."""

    subject: str


def store(folder: Path, **limits: float) -> FileStore[About]:
    return FileStore(folder, ".kept", "notes", About, **limits)  # type: ignore[arg-type]


def named(number: int) -> str:
    return f"{number:016x}"


def test_what_is_written_is_read_and_listed(tmp_path: Path) -> None:
    assert store(tmp_path).read(named(1)) is None
    store(tmp_path).write(named(1), About("one"), b"content")
    assert store(tmp_path).read(named(1)) == (About("one"), b"content")
    (entry,) = store(tmp_path).entries()
    assert (entry.about, entry.path.parent, entry.size_B) == (About("one"), tmp_path, entry.path.stat().st_size)
    assert FileStore(tmp_path, ".other", "other notes", About).entries() == []


def test_a_state_tells_one_content_from_another(tmp_path: Path) -> None:
    kept = store(tmp_path)
    first = kept.write(named(1), About("one"), b"content")
    assert first == kept.state(named(1)) != None  # noqa: E711
    second = kept.update(named(1), lambda: (About("one"), b"CONTENT"))
    assert second == kept.state(named(1)) != first
    assert kept.state(named(2)) is None


@pytest.mark.parametrize("limits", [{"limit": 2}, {"limit_B": 210}])
def test_the_least_recently_used_go(tmp_path: Path, limits: dict[str, int]) -> None:
    kept = store(tmp_path, **limits)
    for number in (1, 2, 3):
        kept.write(named(number), About("a note"), b"content")
        os.utime(kept.path(named(number)), (1000 + number, 1000 + number))
        if number == 2:
            assert kept.read(named(1)) is not None  # used now
    assert {entry.path.stem for entry in kept.entries()} == {named(1), named(3)}


def test_damage_is_removed_with_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = store(tmp_path)
    kept.write(named(1), About("one"), b"content")
    path = kept.path(named(1))
    path.write_bytes(path.read_bytes().replace(b"content", b"contents"))
    with caplog.at_level(logging.WARNING, "lowtide"):
        assert kept.read(named(1)) is None
    assert [r.getMessage() for r in caplog.records] == [
        f"{path.name} of the notes cannot be used, and is found out again: its content does not match its digest"
    ]
    assert not path.exists()


def test_a_disk_that_fails_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    kept = store(tmp_path / "file" / "folder")
    with caplog.at_level(logging.WARNING, "lowtide"):
        assert kept.read(named(1)) is None
        assert kept.write(named(1), About("one"), b"content") is None
        assert kept.update(named(1), lambda: (About("one"), b"content")) is None
    (record,) = caplog.records
    assert "notes cannot be" in record.getMessage()
    assert not any(isinstance(a, BaseException) for a in record.args or ())


def test_a_lock_that_is_never_released_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = store(tmp_path, patience_s=0.01)
    with FileLock(f"{kept.path(named(1))}.lock"), caplog.at_level(logging.WARNING, "lowtide"):
        assert kept.update(named(1), lambda: (About("one"), b"content")) is None
    assert "notes cannot be written to" in caplog.text
    assert kept.update(named(1), lambda: (About("one"), b"content")) is not None
