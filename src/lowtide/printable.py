"""Text for people without the characters that command a terminal.

Names come from files and models of anybody's, and leave through errors, reports and the command line: there, an escape
sequence would colour, move or retitle somebody's terminal, and a sign that turns the direction of writing would make a
line read as something else.
"""

from __future__ import annotations

import unicodedata

_INSTEAD = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """The same text with a replacement character for every one that is not to be seen; newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs" else _INSTEAD for c in text)
