"""Files that are read and replaced as a whole, compressed where their names end in `.gz`."""

from __future__ import annotations

import errno
import gzip
import os
import tempfile
import zlib
from pathlib import Path

from lowtide.errors import PlanFileError


def read_whole(path: Path, source: str, remedy: str = "Name a file that lowtide saved.") -> bytes:
    """What a file holds, unpacked.

    Arguments:
        source: how to name the file in errors.
        remedy: what to do about them.

    Raises:
        PlanFileError: if it cannot be read or unpacked.
    """
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise PlanFileError(f"{source} is truncated or damaged: {error}. {remedy}") from error
    except OSError as error:
        raise PlanFileError(f"{source} cannot be read: {error.strerror or error}. {remedy}") from error


def write_whole(target: Path, text: str) -> None:
    """Replaces a file by a text and a newline; readers see the old file or the whole new one, never a part.

    A compressed file holds no date and no name, so that equal texts are equal files.

    Raises:
        OSError: if the folder cannot be written.
    """
    data = f"{text}\n".encode()
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
