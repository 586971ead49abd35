"""Packings as comma-separated text, one buffer a line, in the form that MiniMalloc publishes its problems in.

Columns, in any order: `id`; `lower` and `upper`, the ticks [lower, upper) of its life; `size`. `start` or `begin` may
stand for `lower`; `end` for `upper`, and is then the last tick of the life. `offset`, if there, gives where a buffer
must lie; an empty cell leaves it free. `alignment`, if there, is the same for all. Other columns are carried along.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lowtide.errors import PackingError
from lowtide.ir.packing import Buffer, Packed, Packing
from lowtide.ir.whole_file import MOST_FILE_B, read_at_most

_OTHER_NAMES = {"buffer": "id", "buffer_id": "id", "start": "lower", "begin": "lower", "end": "upper"}
_NEEDED = ("id", "lower", "upper", "size")


@dataclass(frozen=True)
class PackingTable:
    """A packing with the text that it came from.

    Arguments:
        columns: as the header names them.
        rows: a cell for every column, one row per buffer of the packing.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    packing: Packing


def read_table(
    path: str | os.PathLike[str], *, alignment_B: int | None = None, capacity_B: int | None = None
) -> PackingTable:
    """Reads a file.

    Arguments:
        alignment_B: of the offsets; None for that of the file, or 1.
        capacity_B: a height that is low enough.

    Raises:
        PackingError: if the text is not of that form, or too long; names the file and the line.
        OSError: if the file cannot be read.
    """
    source = os.fspath(path)
    data = read_at_most(Path(path), MOST_FILE_B + 1)
    if len(data) > MOST_FILE_B:
        raise PackingError(f"{source} is too long: it has more than {MOST_FILE_B} bytes. {_REMEDY}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PackingError(f"{source} is not text: {error.reason}. {_REMEDY}") from error
    reader = csv.reader(io.StringIO(text))
    try:
        lines = [(n, row) for n, row in enumerate(reader, start=1) if any(c.strip() for c in row)]
    except csv.Error as error:  # a cell of more than 128 KiB
        raise PackingError(f"{source}, line {reader.line_num}: {error}. {_REMEDY}") from error
    if not lines:
        raise PackingError(f"{source} is empty. {_REMEDY}")
    columns = tuple(cell.strip() for cell in lines[0][1])
    index = _columns(source, columns)
    rows = []
    for number, row in lines[1:]:
        if len(row) != len(columns):
            raise PackingError(f"{source}, line {number}: {len(row)} cells for {len(columns)} columns")
        rows.append((number, tuple(cell.strip() for cell in row)))
    inclusive = "end" in columns
    buffers = tuple(_buffer(f"{source}, line {number}", row, index, inclusive) for number, row in rows)
    in_file_B = _alignment_B(source, rows, index)
    alignment_B = (in_file_B or 1) if alignment_B is None else alignment_B
    return PackingTable(columns, tuple(row for _, row in rows), Packing(buffers, alignment_B, capacity_B=capacity_B))


def write_table(path: str | os.PathLike[str], table: PackingTable, packed: Packed) -> None:
    """Writes the same rows with where the buffers lie, in a column `offset`; the file is replaced as a whole.

    Raises:
        OSError: if the folder cannot be written.
    """
    target = Path(path)
    at = table.columns.index("offset") if "offset" in table.columns else len(table.columns)
    handle, unfinished = tempfile.mkstemp(prefix=target.name, suffix=".tmp", dir=target.parent)
    try:
        with open(handle, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*table.columns[:at], "offset", *table.columns[at + 1 :]])
            for row, offset_B in zip(table.rows, packed.offsets_B, strict=True):
                writer.writerow([*row[:at], offset_B, *row[at + 1 :]])
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, target)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise


_REMEDY = "Name a file with the columns id, lower, upper and size, and a line for every buffer."


def _columns(source: str, columns: tuple[str, ...]) -> dict[str, int]:
    """Where each known column stands."""
    index: dict[str, int] = {}
    for position, column in enumerate(columns):
        name = _OTHER_NAMES.get(column, column)
        if name in index:
            raise PackingError(f"{source} has two columns for {name!r}. {_REMEDY}")
        index[name] = position
    missing = [name for name in _NEEDED if name not in index]
    if missing:
        raise PackingError(f"{source} lacks the columns {', '.join(missing)}. {_REMEDY}")
    return index


def _buffer(where: str, row: tuple[str, ...], index: dict[str, int], inclusive: bool) -> Buffer:
    if "gaps" in index and row[index["gaps"]]:
        raise PackingError(
            f"{where}: buffer {row[index['id']]} has gaps in its life, which lowtide cannot use. "
            "Without the column it holds its bytes through them."
        )
    offset_B = None
    if "offset" in index and row[index["offset"]]:
        offset_B = _integer(where, "offset", row[index["offset"]])
    lower, upper, size_B = (_integer(where, name, row[index[name]]) for name in ("lower", "upper", "size"))
    return Buffer(lower, upper + inclusive, size_B, offset_B)


def _alignment_B(source: str, rows: list[tuple[int, tuple[str, ...]]], index: dict[str, int]) -> int | None:
    """The alignment that the file gives, if it does."""
    if "alignment" not in index:
        return None
    given = {_integer(f"{source}, line {n}", "alignment", row[index["alignment"]]) for n, row in rows}
    if len(given) > 1:
        raise PackingError(f"{source} wants several alignments, {sorted(given)}. Choose one for all buffers.")
    return given.pop() if given else None


def _integer(where: str, name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise PackingError(f"{where}: {name} is {text[:40]!r}, not a whole number") from error
