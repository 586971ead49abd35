"""Docstrings as this project writes them, made ready for napoleon: `Returns: what.` may stand on one line.

Classes are shown without the signature of their constructor: nobody makes plans and handles by hand, and the fields are
explained below the name.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

_ON_ONE_LINE = re.compile(r"(?P<indent> *)(?P<section>Returns): (?P<text>\S.*)")


def unfold(lines: list[str]) -> list[str]:
    """Gives a section that begins on the line of its heading a block of its own, as napoleon wants it."""
    found: list[str] = []
    inside: str | None = None  # the indentation of such a section
    for line in lines:
        match = _ON_ONE_LINE.fullmatch(line)
        if match:
            inside = match["indent"]
            found += [f"{inside}{match['section']}:", f"{inside}    {match['text']}"]
            continue
        if inside is not None and not line.startswith(f"{inside} "):
            inside = None
        found.append(line)
    return found


def _prepare(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    lines[:] = unfold(lines)


def _shorten(
    _app: Sphinx, what: str, _name: str, _object: object, _options: object, _signature: str, _returns: str
) -> tuple[str, None] | None:
    return ("", None) if what == "class" else None


def setup(sphinx: Sphinx) -> dict[str, bool]:
    """Runs before napoleon, which listens at the usual priority."""
    sphinx.connect("autodoc-process-docstring", _prepare, priority=100)
    sphinx.connect("autodoc-process-signature", _shorten)
    return {"parallel_read_safe": True}
