"""Columns that fit a terminal, with notes under each row: no word is broken, what is too long is shortened.

Notes get the full width, so that a path and a line of source are read whole where a column of their own would be a
dozen characters wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

_GAP = 2
_INDENT = "  "
_LEAST = 8  # characters of a column that is shortened


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a listing.

    Arguments:
        cells: as many as there are columns.
        notes: lines under the row; empty ones are left out.
        style: of the cell in the styled column.
    """

    cells: tuple[str, ...]
    notes: tuple[str, ...] = ()
    style: str = ""


def listing(header: Sequence[str], lines: Sequence[Line], width: int, *, right: Sequence[int], styled: int = 0) -> Text:
    """A table as text; where the columns do not fit, the widest is shortened in the middle of its cells.

    Arguments:
        header: names of the columns.
        lines: the rows.
        width: columns of the terminal.
        right: indices of the columns that are set to the right.
        styled: index of the column that takes a row's style.
    """
    widths = [
        max(cell_len(row[i]) for row in [tuple(header), *(line.cells for line in lines)]) for i in range(len(header))
    ]
    while sum(widths) + _GAP * (len(widths) - 1) > width and max(widths) > _LEAST:
        widths[widths.index(max(widths))] -= 1
    page = Text()

    def put(cells: Sequence[str], styles: Sequence[str]) -> None:
        for i, (cell, size, style) in enumerate(zip(cells, widths, styles, strict=True)):
            shown = shortened(cell, size)
            pad = " " * (size - cell_len(shown))
            last = i == len(widths) - 1
            page.append((pad if i in right else "") + shown, style=style)
            page.append("" if last else ("" if i in right else pad) + " " * _GAP)
        page.append("\n")

    put(header, ["bold"] * len(widths))
    for line in lines:
        put(line.cells, [line.style if i == styled else "" for i in range(len(widths))])
        for note in line.notes:
            if note:
                page.append(f"{_INDENT}{cut(note, width - len(_INDENT))}\n", style="dim")
    page.right_crop(1)
    return page


def shortened(word: str, width: int) -> str:
    """A name of at most `width` characters, both ends of which are kept: a layer's number is as telling as its kind."""
    if cell_len(word) <= width:
        return word
    head = (width - 1) // 2
    return f"{word[:head]}…{word[len(word) - (width - 1 - head) :]}"


def cut(text: str, width: int) -> str:
    """The first words of a line, and a mark where others were left out."""
    if cell_len(text) <= width:
        return text
    kept = text[: width - 1]
    whole = kept if text[width - 1 : width].isspace() else kept.rpartition(" ")[0]
    return f"{(whole or kept).rstrip()}…"


def place(module: str, source: str, width: int) -> str:
    """A submodule and a source line in at most `width` characters; of a long one the end is kept, from a dot or slash.

    Arguments:
        module: `transformer.h.11.mlp.c_fc`, or nothing.
        source: `gpt2/modeling_gpt2.py:288`, or nothing.
    """
    parts = [part for part in (module, source) if part]
    if cell_len(" ".join(parts)) > width and "/" in source:
        parts[-1] = source.rpartition("/")[2]
    if module and cell_len(" ".join(parts)) > width:
        parts[0] = _end(module, max(width - cell_len(" ".join(parts[1:])) - 1, _LEAST))
    return " ".join(parts)


def _end(module: str, width: int) -> str:
    """`….11.mlp.c_fc`: the last parts of a dotted name that fit."""
    kept = ""
    for part in reversed(module.split(".")):
        longer = f"{part}.{kept}" if kept else part
        if kept and cell_len(longer) + 2 > width:
            return f"….{kept}"
        kept = longer
    return kept
