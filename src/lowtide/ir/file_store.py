"""What a process has found out, in small files for later ones: profiles, optimizers' needs, plans.

A file has three lines: what it is about, its content, and a digest of both. The first is read without the others, to
list what there is. A name stands for everything that its content depends on, the format's version too, so that there is
never a file of another version under it. Files appear and are replaced in one step, so no reader needs a lock; who adds
to a file holds one. What is damaged is removed with a line in the log, and found out again. A disk that is full or
cannot be written to costs a line in the log, never a step.

A digest is no signature: whoever can write to the folder can write another one. It tells a disk that lost bytes, a
writer that was killed and an editor's slip from what lowtide wrote.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import platformdirs
from filelock import FileLock, Timeout

from lowtide.errors import PlanFileError
from lowtide.ir.whole_file import MOST_FILE_B, read_at_most

_LOG = logging.getLogger("lowtide")
_UNFINISHED = ".unfinished"
_FORGOTTEN_s = 3600.0  # an unfinished file this old was left by a process that was killed
_ABOUT_B = 64 * 1024
_NAME = re.compile(r"[0-9a-f]{16}(-[0-9a-f]{16})?")  # of our own files; others in the folder are left alone

About = TypeVar("About", bound=msgspec.Struct)
State = tuple[int, int, int]


def cache_folder(part: str) -> Path:
    """The folder of one store: in `$LOWTIDE_CACHE_DIR`, else in the user's cache folder."""
    chosen = os.environ.get("LOWTIDE_CACHE_DIR")
    return (Path(chosen) if chosen else Path(platformdirs.user_cache_dir("lowtide"))) / part


@dataclass(frozen=True, slots=True)
class Entry(Generic[About]):
    """A file: what it is about, its bytes, and when it was last used or written (seconds since the epoch)."""

    about: About
    path: Path
    size_B: int
    used_s: float


class FileStore(Generic[About]):
    """Files by name in one folder, safe under several processes.

    Arguments:
        folder: made when first written to.
        suffix: of the files' names, with its dot; several stores may share a folder.
        contents: how to name what is kept, in the log.
        about: the type of the first line.
        limit_B, limit: how many bytes, and how many files, all together may have; the least recently used go.
        patience_s: how long to wait for another process that updates the same file.
    """

    def __init__(
        self,
        folder: Path,
        suffix: str,
        contents: str,
        about: type[About],
        *,
        limit_B: int | None = None,
        limit: int | None = None,
        patience_s: float = 10.0,
    ) -> None:
        self.folder, self.suffix, self.contents = folder, suffix, contents
        self._about = about
        self._limit_B, self._limit, self._patience_s = limit_B, limit, patience_s
        self._has_complained = False

    def path(self, name: str) -> Path:
        """Where a name's file is, or would be."""
        return self.folder / f"{name}{self.suffix}"

    def state(self, name: str) -> State | None:
        """What tells one content of a file from another; None if there is none that can be read."""
        try:
            return _state(self.path(name).stat())
        except OSError:
            return None

    def read(self, name: str) -> tuple[About, bytes] | None:
        """A file's first line and its content, and a note that it was used; None if there is none that can be used."""
        path = self.path(name)
        try:
            data = read_at_most(path, _ABOUT_B + MOST_FILE_B + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.complain("read from", error)
            return None
        try:
            found = self._opened(data)
        except PlanFileError as error:
            self.remove(name, str(error))
            return None
        if self._limit_B is not None or self._limit is not None:
            with contextlib.suppress(OSError):  # a folder that may be read only
                os.utime(path)
        return found

    def write(self, name: str, about: About, content: bytes) -> State | None:
        """Makes or replaces a file in one step, and evicts others where all together are too much.

        Arguments:
            content: one line.

        Returns: what tells it from another; None if it was not written.
        """
        data = b"%b\n%b\n" % (msgspec.json.encode(about), content)
        data += _digest(data) + b"\n"
        if self._limit_B is not None and len(data) > self._limit_B:
            _LOG.info("one of the %s has %d B: not kept, %d B are allowed", self.contents, len(data), self._limit_B)
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            state = self._replace(self.path(name), data)
            self._evict()
        except OSError as error:
            self.complain("written to", error)
            return None
        return state

    def update(self, name: str, content: Callable[[], tuple[About, bytes]]) -> State | None:
        """The same for what depends on the file that is there.

        Arguments:
            content: called while no other process updates the file; may read it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path(name)}.lock", timeout=self._patience_s):
                return self.write(name, *content())
        except (OSError, Timeout) as error:
            self.complain("written to", error)
            return None

    def remove(self, name: str, reason: str) -> None:
        """Removes a file that cannot be used, with a line in the log."""
        path = self.path(name)
        _LOG.warning("%s of the %s cannot be used, and is found out again: %s", path.name, self.contents, reason)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def entries(self, prefix: str = "") -> list[Entry[About]]:
        """The readable files whose names begin so, the most recently used or written first."""
        found: list[Entry[About]] = []
        for path, size_B, used_s in self._files(prefix):
            try:
                with path.open("rb") as file:
                    about = self._read_about(file.readline(_ABOUT_B))
            except (OSError, PlanFileError):
                continue
            found.append(Entry(about, path, size_B, used_s))
        return sorted(found, key=lambda e: -e.used_s)

    def clear(self, older_than_s: float = 0.0) -> tuple[int, int]:
        """Deletes files, and unfinished ones of processes that were killed; leaves those of others alone.

        Arguments:
            older_than_s: only what was last used or written so long ago; 0 for all.

        Returns: how many files went, and their bytes.

        Raises:
            OSError: if a file cannot be deleted.
        """
        now_s = time.time()
        count = bytes_B = 0
        for path, size_B, used_s in self._files():
            if now_s - used_s >= older_than_s:
                path.unlink(missing_ok=True)
                count, bytes_B = count + 1, bytes_B + size_B
        self._sweep(now_s)
        return count, bytes_B

    def _opened(self, data: bytes) -> tuple[About, bytes]:
        """What a file's bytes say.

        Raises:
            PlanFileError: if they are damaged, or something else.
        """
        body, _, seal = data.removesuffix(b"\n").rpartition(b"\n")
        if seal != _digest(body + b"\n"):
            raise PlanFileError("its content does not match its digest")
        about, _, content = body.partition(b"\n")
        return self._read_about(about), content

    def _read_about(self, line: bytes) -> About:
        try:
            return msgspec.json.decode(line, type=self._about)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PlanFileError(f"its first line cannot be read ({error})") from error

    def _files(self, prefix: str = "", *, suffix: str | None = None) -> Iterator[tuple[Path, int, float]]:
        """Path, bytes and last use; another process may delete a file meanwhile."""
        try:
            paths = sorted(self.folder.glob(f"{prefix}*{suffix or self.suffix}"))
        except OSError as error:
            self.complain("read from", error)
            return
        for path in paths:
            if suffix is None and not _NAME.fullmatch(path.name.removesuffix(self.suffix)):
                continue
            with contextlib.suppress(OSError):
                facts = path.stat()
                yield path, facts.st_size, facts.st_mtime

    def _evict(self) -> None:
        """Deletes the least recently used files until the rest is within the limits."""
        if self._limit_B is None and self._limit is None:
            return
        files = sorted(self._files(), key=lambda f: f[2])
        total_B, count = sum(size_B for _, size_B, _ in files), len(files)
        for path, size_B, _ in files[:-1]:
            if total_B <= (self._limit_B or total_B) and count <= (self._limit or count):
                break
            path.unlink(missing_ok=True)
            total_B, count = total_B - size_B, count - 1
        self._sweep(time.time())

    def _sweep(self, now_s: float) -> None:
        for path, _, used_s in self._files(suffix=_UNFINISHED):
            if now_s - used_s > _FORGOTTEN_s:
                path.unlink(missing_ok=True)

    def _replace(self, path: Path, data: bytes) -> State:
        handle, unfinished = tempfile.mkstemp(prefix=path.stem, suffix=_UNFINISHED, dir=path.parent)
        try:
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                state = _state(os.fstat(handle))  # that of the file which takes the name, whoever replaces it then
            os.replace(unfinished, path)
        finally:
            Path(unfinished).unlink(missing_ok=True)
        return state

    def complain(self, verb: str, error: Exception) -> None:
        """Once per store: a disk that is full stays so for a while. The error's text alone is logged: a kept log record
        would keep the frames that it passed through, and with them tensors."""
        level = logging.DEBUG if self._has_complained else logging.WARNING
        self._has_complained = True
        _LOG.log(level, "%s cannot be %s %s: %s", self.contents, verb, self.folder, str(error))


def _state(facts: os.stat_result) -> State:
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
