"""Files that are read and replaced as a whole, compressed where their names end in `.gz`.

A file may come from anybody, so its bytes are counted before they are kept: a compressed one is unpacked piece by piece
first, and thrown away, to see how many there would be. Units: `_B` bytes.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import tempfile
import zlib
from pathlib import Path

from lowtide.errors import PlanFileError
from lowtide.units import format_B

MOST_FILE_B = 128 * 2**20  # unpacked; the plan of a step of ten thousand operators takes twenty
_PIECE_B = 2**20


def read_whole(path: Path, source: str, remedy: str = "Name a file that lowtide saved.") -> bytes:
    """What a file holds, unpacked.

    Arguments:
        source: how to name the file in errors.
        remedy: what to do about them.

    Raises:
        PlanFileError: if it cannot be read or unpacked, or holds more than `MOST_FILE_B`.
    """
    try:
        data = read_at_most(path, MOST_FILE_B + 1)
        if path.suffix == ".gz" and len(data) <= MOST_FILE_B:
            _count_unpacked(data)
            data = gzip.decompress(data)
    except _TooLong as error:
        raise _too_long(source, remedy) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise PlanFileError(f"{source} is truncated or damaged: {error}. {remedy}") from error
    except OSError as error:
        raise PlanFileError(f"{source} cannot be read: {error.strerror or error}. {remedy}") from error
    if len(data) > MOST_FILE_B:
        raise _too_long(source, remedy)
    return data


def read_at_most(path: Path, most_B: int) -> bytes:
    """The first bytes of a file, a pipe or a device, which may have no end.

    Raises:
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        facts = os.fstat(file.fileno())
        if stat.S_ISREG(facts.st_mode):  # else as much memory as may be read would be taken first
            most_B = min(most_B, facts.st_size)
        return file.read(most_B)


def _too_long(source: str, remedy: str) -> PlanFileError:
    return PlanFileError(
        f"{source} is too long: unpacked, it has more than the {format_B(MOST_FILE_B)} that lowtide reads. {remedy}"
    )


class _TooLong(Exception):
    """A compressed file that holds more than is read."""


def _count_unpacked(data: bytes) -> None:
    """Unpacks data and keeps nothing of it.

    Raises:
        _TooLong: if there is more than `MOST_FILE_B` in it.
        EOFError, gzip.BadGzipFile, zlib.error: if it is damaged.
    """
    count_B = 0
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
        while piece := packed.read(_PIECE_B):
            count_B += len(piece)
            if count_B > MOST_FILE_B:
                raise _TooLong


def write_whole(target: Path, text: str) -> None:
    """Replaces a file by a text and a newline; readers see the old file or the whole new one, never a part.

    A compressed file holds no date and no name, so that equal texts are equal files.

    Raises:
        PlanFileError: if nobody could read it again: it is longer than `MOST_FILE_B`.
        OSError: if the folder cannot be written.
    """
    data = f"{text}\n".encode()
    if len(data) > MOST_FILE_B:
        raise _too_long(f"what {target} is to hold", "Nothing is written.")
    if target.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    if not target.parent.is_dir():  # else the error would name a file that nobody asked for
        raise FileNotFoundError(errno.ENOENT, "there is no such folder to write to", str(target.parent))
    handle, name = tempfile.mkstemp(prefix=target.name, suffix=".tmp", dir=target.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
