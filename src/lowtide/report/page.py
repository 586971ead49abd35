"""What the HTML pages share: the page around them, cards, tables. Nothing refers to the outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files

from lowtide.report.markup import escape
from lowtide.report.svg import style


def page(title: str, body: Sequence[str], scripts: Sequence[str] = ()) -> str:
    """The text of one self-contained page.

    Arguments:
        title: of the window.
        body: HTML, piece by piece.
        scripts: elements behind it.
    """
    layout = files("lowtide.report").joinpath("page.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>\n{style()}{layout}</style></head><body>",
            *body,
            *scripts,
            "</body></html>\n",
        ]
    )


def card_row(cards: Iterable[tuple[str, str, str]]) -> str:
    """The main numbers: label, figure, note."""
    told = "".join(
        f'<div class="card"><span class="dim">{escape(label)}</span><b>{escape(value)}</b>'
        f'<span class="dim">{escape(note)}</span></div>'
        for label, value, note in cards
    )
    return f'<div class="cards">{told}</div>'


def fact_table(rows: Iterable[tuple[str, str]]) -> str:
    """Labels and texts; line breaks are kept."""
    told = "".join(
        f"<tr><th>{escape(label)}</th><td>{'<br>'.join(map(escape, text.splitlines()))}</td></tr>"
        for label, text in rows
    )
    return f'<table class="facts"><tbody>{told}</tbody></table>'


def figure_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: Sequence[int]) -> str:
    """A table of figures.

    Arguments:
        texts: columns that hold words.
    """
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    told = "".join(
        "<tr>"
        + "".join(
            f"<td>{escape(cell)}</td>" if column in texts else f'<td class="number">{escape(cell)}</td>'
            for column, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{told}</tbody></table></div>'
