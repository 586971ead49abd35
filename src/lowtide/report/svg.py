"""SVG: pieces of a picture, and a picture as a file of its own with its title and legend.

Colours are those of `picture.css`, for pages and for files; nothing refers to the outside.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from lowtide.report.markup import escape

_MARGIN, _TITLE, _ROW = 14.0, 34.0, 20.0
_SAMPLE, _GLYPH = 16.0, 5.9  # what a legend's sample takes, and a letter at 11 pixels, on average


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing that is not framed yet.

    Arguments:
        label: what it shows, for who cannot see it.
        body: elements, in the order in which they are painted.
        legend: what its colours and letters mean: the class of a sample and its text. A class that ends in "-line" is
            shown as a line, another as an area, and an empty one not at all.
    """

    width: float
    height: float
    label: str
    body: tuple[str, ...]
    legend: tuple[tuple[str, str], ...]


def inline(picture: Picture, name: str) -> str:
    """A picture with its legend as an element of a page, which has its style.

    Arguments:
        name: the element's id.
    """
    below, height = _legend(picture)
    box = f'viewBox="0 0 {picture.width:.0f} {height:.0f}"'
    head = f'<svg id="{name}" {box} role="img" aria-label="{escape(picture.label)}">'
    return "\n".join([head, *picture.body, *below, "</svg>"])


def document(picture: Picture, title: str) -> str:
    """A picture as a file, with its legend and style and a title: dark on white, for whatever shows SVG."""
    below, height_of_both = _legend(picture)
    width, height = f"{picture.width:.0f}", f"{height_of_both + _TITLE:.0f}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(picture.label)}</desc>",
            f"<style>\n{_style_of_a_file()}</style>",
            f'<rect class="paper" width="{width}" height="{height}"/>',
            text(_MARGIN, 22, title, "start", "title"),
            f'<g transform="translate(0 {_TITLE:.0f})">',
            *picture.body,
            *below,
            "</g>",
            "</svg>\n",
        ]
    )


def style() -> str:
    """The colours, by name and in light and dark, and the line styles that pages and pictures share."""
    return files("lowtide.report").joinpath("picture.css").read_text(encoding="utf-8")


def _style_of_a_file() -> str:
    """The line styles in the light colours; many programs that show SVG know neither names nor media queries."""
    colours, _, rules = style().partition("/* pictures */\n")
    light = dict(re.findall(r"--([\w-]+): (#\w+)", colours.partition("@media")[0]))
    return re.sub(r"var\(--([\w-]+)\)", lambda name: light[name[1]], rules)


def _legend(picture: Picture) -> tuple[list[str], float]:
    """The legend's elements below a picture, and the height of both; a row ends before what would leave the picture."""
    elements: list[str] = []
    x, y = _MARGIN, picture.height + _ROW
    for kind, told in picture.legend:
        sample = _SAMPLE + 6 if kind else 0.0
        wide = sample + _GLYPH * len(told) + 18
        if x > _MARGIN and x + wide > picture.width - _MARGIN:
            x, y = _MARGIN, y + _ROW
        if kind.endswith("-line"):
            elements.append(level(kind, y - 4, x, x + _SAMPLE))
        elif kind:
            elements.append(rectangle(kind, x, y - 8, _SAMPLE, 8, told))
        elements.append(text(x + sample, y, told, "start"))
        x += wide
    return elements, y + _MARGIN


def text(x: float, y: float, told: str, anchor: str, name: str = "") -> str:
    """A line of text."""
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(told)}</text>'


def round_step(span: float, most: int) -> float:
    """The smallest round step with at most so many in a span."""
    size = 10.0 ** math.floor(math.log10(span / most))
    return next(size * factor for factor in (1, 2, 5, 10) if span / (size * factor) <= most)


def rectangle(name: str, x: float, y: float, width: float, height: float, title: str) -> str:
    """A rectangle of a class, with what the pointer tells there."""
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{name}" {box}><title>{escape(title)}</title></rect>'


def upright(name: str, x: float, top: float, bottom: float) -> str:
    """A vertical line of a class."""
    return f'<line class="{name}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'


def level(name: str, y: float, left: float, right: float) -> str:
    """A horizontal line of a class."""
    return f'<line class="{name}" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'


def polyline(name: str, corners: Sequence[tuple[float, float]]) -> str:
    """A line through corners, of a class."""
    return f'<polyline class="{name}" points="{_points(corners)}"/>'


def polygon(name: str, corners: Sequence[tuple[float, float]]) -> str:
    """A filled outline, of a class."""
    return f'<polygon class="{name}" points="{_points(corners)}"/>'


def _points(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
