"""Measurements on disk: one file per fingerprint, safe under several processes, replaced as a whole.

Writing merges: under a lock the file is read again, new entries are added, and the result replaces the file in one
step. Neither of two processes loses what the other measured, and an interruption leaves the old file or the new one.

Units: `_B` bytes.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs
from filelock import FileLock, Timeout

from lowtide.device.fingerprint import Fingerprint
from lowtide.errors import PlanFileError
from lowtide.ir.sealed import sealed, unsealed
from lowtide.profile.measurement import Measurement, is_sound

_LOG = logging.getLogger("lowtide")
_VERSION = 3
_PATIENCE_s = 10.0
_NAME = re.compile(r"[0-9a-f]{16}")  # of our own files; others in the folder are left alone


class _Table(msgspec.Struct):
    """What holds for one fingerprint.

    Arguments:
        entries: measurements by signature.
        verdicts: why an implementation is not exact, by what was tried; empty where it is.
        rates: of copying, by what was copied when: bytes per second, or seconds of a copy of nothing.
    """

    entries: dict[str, Measurement] = {}
    verdicts: dict[str, str] = {}
    rates: dict[str, float] = {}


class _File(msgspec.Struct):
    """The content of one file."""

    version: int
    fingerprint: Fingerprint
    entries: dict[str, Measurement] = {}
    verdicts: dict[str, str] = {}
    rates: dict[str, float] = {}


def default_folder() -> Path:
    """Where measurements are kept: `$LOWTIDE_CACHE_DIR/profiles`, else in the user's cache folder."""
    chosen = os.environ.get("LOWTIDE_CACHE_DIR")
    return (Path(chosen) if chosen else Path(platformdirs.user_cache_dir("lowtide"))) / "profiles"


@dataclass(frozen=True, slots=True)
class Kept:
    """One file: for what, how many measurements, its bytes, when it was written (seconds since the epoch)."""

    fingerprint: Fingerprint
    entries: int
    size_B: int
    written_s: float


class ProfileCache:
    """Measurements by fingerprint and signature.

    Arguments:
        folder: made when first written to; `default_folder()` when None.
        period_s: `put` writes to disk when the last write is this long ago.
    """

    def __init__(self, folder: Path | None = None, *, period_s: float = 1.0) -> None:
        self.folder = folder or default_folder()
        self._period_s = period_s
        self._known: dict[str, _Table] = {}
        self._new: dict[Fingerprint, _Table] = {}
        self._written_s = time.monotonic()

    def get(self, fingerprint: Fingerprint, key: str) -> Measurement | None:
        """A measurement made earlier, by this process or another one; None if there is none that makes sense."""
        found = self._table(fingerprint).entries.get(key)
        if found is None or is_sound(found):
            return found
        _LOG.warning("a measurement in %s cannot be one; it is taken again", self._path(fingerprint))
        del self._table(fingerprint).entries[key]
        return None

    def put(self, fingerprint: Fingerprint, key: str, measurement: Measurement) -> None:
        """Remembers a measurement, and writes to disk now and then."""
        self._table(fingerprint).entries[key] = measurement
        self._fresh(fingerprint).entries[key] = measurement
        if time.monotonic() - self._written_s > self._period_s:
            self.flush()

    def verdict(self, fingerprint: Fingerprint, key: str) -> str | None:
        """Why an implementation is not exact, found out earlier; empty if it is, None if that is not known."""
        return self._table(fingerprint).verdicts.get(key)

    def put_verdict(self, fingerprint: Fingerprint, key: str, reason: str) -> None:
        """Remembers whether an implementation is exact; `flush` writes it."""
        self._table(fingerprint).verdicts[key] = reason
        self._fresh(fingerprint).verdicts[key] = reason

    def rate(self, fingerprint: Fingerprint, key: str) -> float | None:
        """What copying was measured to do earlier; None if it was not."""
        rate = self._table(fingerprint).rates.get(key)
        return rate if rate is not None and math.isfinite(rate) and rate > 0 else None

    def put_rate(self, fingerprint: Fingerprint, key: str, rate: float) -> None:
        """Remembers what copying does; `flush` writes it."""
        self._table(fingerprint).rates[key] = rate
        self._fresh(fingerprint).rates[key] = rate

    def flush(self) -> None:
        """Writes everything that is not on disk yet. A disk that cannot be written to is a warning, not an error."""
        self._written_s = time.monotonic()
        for fingerprint in list(self._new):
            path = self._path(fingerprint)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                with FileLock(f"{path}.lock", timeout=_PATIENCE_s):
                    file = _merged(_read(path), self._new[fingerprint])
                    content = _File(_VERSION, fingerprint, file.entries, file.verdicts, file.rates)
                    _replace(path, sealed(content))
                    _READ[path] = (_state(path.stat()), file)
            except (OSError, Timeout) as error:
                # Its text alone: a kept log record would keep the frames of this call, and with them tensors.
                _LOG.warning("measurements could not be saved to %s: %s", path, str(error))
                return
            self._table(fingerprint).entries.update(file.entries)
            self._table(fingerprint).verdicts.update(file.verdicts)
            self._table(fingerprint).rates.update(file.rates)
            del self._new[fingerprint]

    def entries(self) -> int:
        """How many measurements are on disk."""
        return sum(len(_read(path).entries) for path in self._files())

    def size_B(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self._files())

    def contents(self) -> list[Kept]:
        """What every readable file on disk holds, the one that was written last first."""
        found: list[Kept] = []
        for path in self._files():
            try:
                facts, file = path.stat(), unsealed(path.read_bytes(), _File)
            except (OSError, PlanFileError):
                continue
            found.append(Kept(file.fingerprint, len(file.entries), facts.st_size, facts.st_mtime))
        return sorted(found, key=lambda kept: -kept.written_s)

    def clear(self, older_than_s: float = 0.0) -> tuple[int, int]:
        """Deletes measurements, damaged files that were set aside included.

        Arguments:
            older_than_s: only files that were last written so long ago; 0 for all.

        Returns: how many files of measurements went, and their bytes.
        """
        now_s, count, bytes_B = time.time(), 0, 0
        for path in self._files():
            with FileLock(f"{path}.lock", timeout=_PATIENCE_s):
                facts = path.stat() if path.exists() else None
                if facts is not None and now_s - facts.st_mtime >= older_than_s:
                    path.unlink()
                    count, bytes_B = count + 1, bytes_B + facts.st_size
        for path in self.folder.glob("*.damaged*"):
            if now_s - path.stat().st_mtime >= older_than_s:
                path.unlink(missing_ok=True)
        self._known.clear()
        self._new.clear()
        return count, bytes_B

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.json") if _NAME.fullmatch(path.stem))

    def _path(self, fingerprint: Fingerprint) -> Path:
        name = f"{_VERSION} {fingerprint.key}"  # files of another version are left alone
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"

    def _fresh(self, fingerprint: Fingerprint) -> _Table:
        return self._new.setdefault(fingerprint, _Table())

    def _table(self, fingerprint: Fingerprint) -> _Table:
        if fingerprint.key not in self._known:
            self._known[fingerprint.key] = _read(self._path(fingerprint))
        return self._known[fingerprint.key]


def _merged(old: _Table, new: _Table) -> _Table:
    """Both; of two measurements of one signature the newer, except that a scaled one replaces no real one."""
    kept = {k: m for k, m in new.entries.items() if not m.scaled or k not in old.entries or old.entries[k].scaled}
    return _Table(old.entries | kept, old.verdicts | new.verdicts, old.rates | new.rates)


_State = tuple[int, int, int]
_READ: dict[Path, tuple[_State, _Table]] = {}  # what this process knows of a file, and the state that it had then


def _state(facts: os.stat_result) -> _State:
    """What tells one content of a file from another: they are replaced as a whole."""
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _read(path: Path) -> _Table:
    """The entries of a file; a damaged one is set aside and counts as empty. Decoded once while it is the same."""
    try:
        with path.open("rb") as opened:
            state = _state(os.fstat(opened.fileno()))
            known = _READ.get(path)
            if known is not None and known[0] == state:
                return _copy(known[1])
            content = opened.read()
    except FileNotFoundError:
        return _Table()
    except OSError as error:
        _LOG.warning("measurements could not be read from %s: %s", path, str(error))
        return _Table()
    try:
        file = unsealed(content, _File)
    except PlanFileError as error:
        aside = path.with_suffix(f".damaged{time.time_ns()}")
        _LOG.warning("%s is damaged (%s); it is kept as %s and measured again", path, str(error), aside.name)
        try:
            os.replace(path, aside)
        except OSError as problem:
            _LOG.warning("%s could not be set aside: %s", path, str(problem))
        return _Table()
    table = _Table(file.entries, file.verdicts, file.rates) if file.version == _VERSION else _Table()
    _READ[path] = (state, table)
    return _copy(table)


def _copy(table: _Table) -> _Table:
    """A table of its own, of the same measurements: they are never changed."""
    return _Table(dict(table.entries), dict(table.verdicts), dict(table.rates))


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
