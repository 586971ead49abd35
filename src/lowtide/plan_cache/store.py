"""Plans on disk: one file per plan, found by what was asked, safe under several processes, bounded in bytes.

A file has two lines: a header that says for people and for eviction what the plan is for, and the plan itself as
`ir/text.py` writes it, digest included. Its name starts with the structure of the program, so that plans for other
shapes of one program stand together. Files appear and are replaced in one step, so no reader needs a lock; one that
cannot be used is removed with a line in the log, and the plan is sought anew. A disk that is full or cannot be written
to costs a line in the log, never a step.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs

from lowtide.errors import BudgetError, PlanError, PlanFileError
from lowtide.ir.check_claims import check_claims
from lowtide.ir.plan import PlanRecord
from lowtide.ir.text import dumps, loads
from lowtide.ir.whole_file import MOST_FILE_B, read_at_most
from lowtide.units import parse_budget

_LOG = logging.getLogger("lowtide")
_FORMAT = "lowtide-plan-cache"
_VERSION = 1
_SUFFIX = ".plan"
_UNFINISHED = ".unfinished"
_DEFAULT_B = 2**30
_FORGOTTEN_s = 3600.0  # an unfinished file this old was left by a process that was killed
_HEADER_B = 64 * 1024


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a cached plan's file.

    Arguments:
        key: under which the plan is kept.
        structure: of its program (`lowtide.ir.likeness.structure`).
        size_B: bytes of the program's values together, which orders its shapes.
        name: of the program, for people; may be empty.
        shapes: of the inputs, for people.
        budget_B: what the budget came to.
        environment: where it was measured; plans are neighbours only within one.
        lowtide: version that wrote it.
    """

    key: str
    structure: str
    size_B: int
    name: str
    shapes: str
    budget_B: int
    environment: str
    lowtide: str
    format: str = _FORMAT
    version: int = _VERSION


@dataclass(frozen=True, slots=True)
class Entry:
    """A plan on disk: its header, its file's bytes, and when it was last used (seconds since the epoch)."""

    header: Header
    path: Path
    size_B: int
    used_s: float


def default_folder() -> Path:
    """The folder of cached plans: `$LOWTIDE_CACHE_DIR/plans`, else in the user's cache folder."""
    chosen = os.environ.get("LOWTIDE_CACHE_DIR")
    return (Path(chosen) if chosen else Path(platformdirs.user_cache_dir("lowtide"))) / "plans"


def default_limit_B() -> int:
    """Bytes that the plans may take: `$LOWTIDE_PLAN_CACHE` ("512MiB"; "0" keeps none), else 1 GiB.

    Raises:
        BudgetError: if the variable cannot be read.
    """
    text = os.environ.get("LOWTIDE_PLAN_CACHE", "").strip()
    if not text:
        return _DEFAULT_B
    if text == "0":
        return 0
    try:
        size_B = parse_budget(text).size_B
    except BudgetError as error:
        raise BudgetError(f"LOWTIDE_PLAN_CACHE: {error}") from error
    if size_B is None:
        raise BudgetError(
            f'LOWTIDE_PLAN_CACHE={text!r} is a share of nothing: write bytes, "512MiB", or 0 for no plans'
        )
    return size_B


class PlanCache:
    """Plans by key.

    Arguments:
        folder: made when first written to; `default_folder()` when None.
        limit_B: the least recently used plans go when all together take more; 0 keeps and finds none;
            `default_limit_B()` when None.

    Raises:
        BudgetError: if `$LOWTIDE_PLAN_CACHE` cannot be read.
    """

    def __init__(self, folder: Path | None = None, *, limit_B: int | None = None) -> None:
        self.folder = folder or default_folder()
        self.limit_B = default_limit_B() if limit_B is None else limit_B
        self._has_complained = False

    def get(self, structure: str, key: str) -> PlanRecord | None:
        """The plan under a key, and a note that it was used; None if there is none that can be read."""
        if not self.limit_B:
            return None
        path = self._path(structure, key)
        try:
            content = read_at_most(path, _HEADER_B + MOST_FILE_B + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain("read from", path, error)
            return None
        header, _, body = content.partition(b"\n")
        try:
            if len(content) > _HEADER_B + MOST_FILE_B:
                raise PlanFileError("it is too long")
            found = _header(header)
            if found.key != key or found.structure != structure:
                raise PlanFileError("its key is another than its name says")
            record = loads(body, PlanRecord, path.name, sealed=True)
            check_claims(record)
        except PlanError as error:
            self.discard(structure, key, str(error))
            return None
        with contextlib.suppress(OSError):  # a folder that may be read only
            os.utime(path)
        return record

    def put(self, header: Header, record: PlanRecord) -> None:
        """Keeps a plan, and lets the least recently used go where all together take too much."""
        if not self.limit_B:
            return
        path = self._path(header.structure, header.key)
        try:
            content = msgspec.json.encode(header) + b"\n" + dumps(record).encode() + b"\n"
        except PlanFileError as error:  # a planner's statistics without a text form
            self._complain("written to", path, error)
            return
        if len(content) > self.limit_B:
            _LOG.info("a plan of %d B is not kept: LOWTIDE_PLAN_CACHE allows %d B", len(content), self.limit_B)
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(path, content)
            self._evict()
        except OSError as error:
            self._complain("written to", path, error)

    def discard(self, structure: str, key: str, reason: str) -> None:
        """Removes a plan that cannot be used; another will be sought."""
        path = self._path(structure, key)
        _LOG.warning("the cached plan %s cannot be used and is sought anew: %s", path.name, reason)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    def shapes_of(self, structure: str) -> list[Entry]:
        """The plans there are for other shapes of one program."""
        return list(self._entries(f"{structure}-*{_SUFFIX}")) if self.limit_B else []

    def entries(self) -> list[Entry]:
        """Every plan on disk, the most recently used first. Files that are none are left out, and left alone."""
        return sorted(self._entries(f"*{_SUFFIX}"), key=lambda e: -e.used_s)

    def clear(self, older_than_s: float = 0.0) -> tuple[int, int]:
        """Deletes plans, and unfinished files of processes that were killed; leaves other files alone.

        Arguments:
            older_than_s: only what was last used so long ago; 0 for all.

        Returns: how many plans went, and their bytes.

        Raises:
            OSError: if a file cannot be deleted.
        """
        now_s = time.time()
        count = bytes_B = 0
        for path, size_B, used_s in self._files(f"*{_SUFFIX}"):
            if now_s - used_s >= older_than_s:
                path.unlink(missing_ok=True)
                count, bytes_B = count + 1, bytes_B + size_B
        self._sweep(now_s)
        return count, bytes_B

    def _path(self, structure: str, key: str) -> Path:
        return self.folder / f"{structure}-{key}{_SUFFIX}"

    def _files(self, pattern: str) -> Iterator[tuple[Path, int, float]]:
        """Path, bytes and last use; another process may delete a file meanwhile."""
        try:
            paths = sorted(self.folder.glob(pattern))
        except OSError as error:
            self._complain("read from", self.folder, error)
            return
        for path in paths:
            try:
                facts = path.stat()
            except OSError:
                continue
            yield path, facts.st_size, facts.st_mtime

    def _entries(self, pattern: str) -> Iterator[Entry]:
        for path, size_B, used_s in self._files(pattern):
            try:
                with path.open("rb") as file:
                    header = _header(file.readline(_HEADER_B))
            except (OSError, PlanFileError):
                continue
            yield Entry(header, path, size_B, used_s)

    def _evict(self) -> None:
        """Deletes the least recently used plans until the rest is within the limit."""
        files = sorted(self._files(f"*{_SUFFIX}"), key=lambda f: f[2])
        total_B = sum(size_B for _, size_B, _ in files)
        for path, size_B, _ in files[:-1]:
            if total_B <= self.limit_B:
                break
            path.unlink(missing_ok=True)
            total_B -= size_B
        self._sweep(time.time())

    def _sweep(self, now_s: float) -> None:
        for path, _, used_s in self._files(f"*{_UNFINISHED}"):
            if now_s - used_s > _FORGOTTEN_s:
                path.unlink(missing_ok=True)

    def _complain(self, verb: str, path: Path, error: Exception) -> None:
        """Once per process: a disk that is full stays so for a while."""
        level = logging.DEBUG if self._has_complained else logging.WARNING
        self._has_complained = True
        _LOG.log(level, "plans cannot be %s %s: %s", verb, path.parent, str(error))


def _header(line: bytes) -> Header:
    """Reads and judges a header.

    Raises:
        PlanFileError: if it is damaged, foreign, or of another version.
    """
    try:
        header = msgspec.json.decode(line, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanFileError(f"its header cannot be read ({error})") from error
    if (header.format, header.version) != (_FORMAT, _VERSION):
        raise PlanFileError(f"it is of format {header.format!r}, version {header.version}")
    return header


def _write(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=path.stem, suffix=_UNFINISHED, dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
