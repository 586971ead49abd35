"""Measurements on disk: one file per fingerprint, which several processes may add to.

Of two processes that measure at once, neither loses what the other found: what is new is merged into the file.

Units: `_B` bytes.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from pathlib import Path

import msgspec

from lowtide.device.fingerprint import Fingerprint
from lowtide.ir.file_store import FileStore, State, cache_folder
from lowtide.profile.measurement import Measurement, is_sound

_LOG = logging.getLogger("lowtide")
_VERSION = 4


class About(msgspec.Struct, frozen=True):
    """The first line of a file: for what it holds, and how many measurements."""

    fingerprint: Fingerprint
    entries: int


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


class ProfileCache:
    """Measurements by fingerprint and signature.

    Arguments:
        folder: made when first written to; that of the user's cache when None.
        period_s: `put` writes to disk when the last write is this long ago.
    """

    def __init__(self, folder: Path | None = None, *, period_s: float = 1.0) -> None:
        self.store = FileStore(folder or cache_folder("profiles"), ".profile", "measurements", About)
        self._period_s = period_s
        self._known: dict[str, _Table] = {}
        self._new: dict[Fingerprint, _Table] = {}
        self._written_s = time.monotonic()

    def get(self, fingerprint: Fingerprint, key: str) -> Measurement | None:
        """A measurement made earlier, by this process or another one; None if there is none that makes sense."""
        found = self._table(fingerprint).entries.get(key)
        if found is None or is_sound(found):
            return found
        _LOG.warning("a measurement in %s cannot be one; it is taken again", self.store.path(_name(fingerprint)))
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
        for fingerprint, new in list(self._new.items()):
            name, merged = _name(fingerprint), _Table()

            def content(fingerprint: Fingerprint = fingerprint, new: _Table = new) -> tuple[About, bytes]:
                nonlocal merged
                merged = _merged(self._on_disk(_name(fingerprint)), new)
                return About(fingerprint, len(merged.entries)), msgspec.json.encode(merged)

            state = self.store.update(name, content)
            if state is None:
                return
            _READ[self.store.path(name)] = (state, merged)
            table = self._table(fingerprint)
            table.entries.update(merged.entries)
            table.verdicts.update(merged.verdicts)
            table.rates.update(merged.rates)
            del self._new[fingerprint]

    def clear(self, older_than_s: float = 0.0) -> tuple[int, int]:
        """Deletes measurements.

        Arguments:
            older_than_s: only files that were last written so long ago; 0 for all.

        Returns: how many files went, and their bytes.
        """
        self._known.clear()
        self._new.clear()
        return self.store.clear(older_than_s)

    def _fresh(self, fingerprint: Fingerprint) -> _Table:
        return self._new.setdefault(fingerprint, _Table())

    def _table(self, fingerprint: Fingerprint) -> _Table:
        name = _name(fingerprint)
        if name not in self._known:
            self._known[name] = self._on_disk(name)
        return self._known[name]

    def _on_disk(self, name: str) -> _Table:
        """What a file holds, decoded once while it is the same."""
        path, state = self.store.path(name), self.store.state(name)
        if state is None:
            return _Table()
        if path not in _READ or _READ[path][0] != state:
            found, table = self.store.read(name), _Table()
            try:
                table = table if found is None else msgspec.json.decode(found[1], type=_Table)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self.store.remove(name, str(error))
            _READ[path] = (state, table)
        return _copy(_READ[path][1])


def _merged(old: _Table, new: _Table) -> _Table:
    """Both; of two measurements of one signature the newer, except that a scaled one replaces no real one."""
    kept = {k: m for k, m in new.entries.items() if not m.scaled or k not in old.entries or old.entries[k].scaled}
    return _Table(old.entries | kept, old.verdicts | new.verdicts, old.rates | new.rates)


# What this process knows of a file, and the state that it had then: a session's many caches decode it once.
_READ: dict[Path, tuple[State, _Table]] = {}


def _copy(table: _Table) -> _Table:
    """A table of its own, of the same measurements: they are never changed."""
    return _Table(dict(table.entries), dict(table.verdicts), dict(table.rates))


def _name(fingerprint: Fingerprint) -> str:
    return hashlib.sha256(f"{_VERSION} {fingerprint.key}".encode()).hexdigest()[:16]
