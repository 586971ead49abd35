"""The pages of the documentation and the blocks of code in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Arguments:
        language: the first word after the fence.
        role: the second one, if there is one.
        text: without the fence.
        line: of the page on which the text begins, from 1.
    """

    language: str
    role: str
    text: str
    line: int


def name_of(page: Path) -> str:
    """The page as a test's name."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page in some languages, in order."""
    found = []
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "fence" and token.map is not None:
            language, role = (*token.info.split(), "", "")[:2]
            if language in languages:
                found.append(Block(language, role, token.content, token.map[0] + 2))
    return found
