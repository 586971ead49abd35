"""The reference and the page of errors know every public name, and quote what is really said."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

import lowtide
from lowtide import errors
from tests.docs.pages import ROOT, blocks

DOCS = ROOT / "docs"
ERRORS = DOCS / "errors.md"
CLASSES = [
    name for name, found in vars(errors).items() if inspect.isclass(found) and found.__module__ == "lowtide.errors"
]


def test_every_public_name_has_a_place_in_the_reference() -> None:
    text = DOCS.joinpath("reference", "python.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\.\. auto\w+:: lowtide\.(\w+)$", text, re.MULTILINE))
    assert set(lowtide.__all__) - {"__version__"} == named


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_has_its_section(name: str) -> None:
    assert re.search(rf"^#+ .*`{name}`", ERRORS.read_text(encoding="utf-8"), re.MULTILINE)


def test_messages_are_quoted_as_they_are() -> None:
    """Blocks of text on the page of errors are messages; "…" stands for what differs from time to time."""
    said = _said()
    for block in blocks(ERRORS, "text"):
        for message in block.text.strip().split("\n\n"):
            parts = [part.strip() for part in " ".join(message.split()).split("…") if part.strip()]
            pattern = ".*?".join(re.escape(part) for part in parts)
            assert re.search(pattern, said), f"errors.md:{block.line}: nothing in the sources says\n{message}"


def _said() -> str:
    """Every text in the sources, one a line: Python's, put together where it is written in pieces, and C++'s."""
    found = []
    for file in ROOT.joinpath("src", "lowtide").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values))
    for file in [*ROOT.joinpath("src").rglob("*.cpp"), *ROOT.joinpath("src").rglob("*.hpp")]:
        found.append(" ".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', file.read_text(encoding="utf-8"))))
    return "\n".join(" ".join(text.split()) for text in found)
