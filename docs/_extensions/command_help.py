"""The directive `command-help`: every verb of the command line with the help that it prints itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.testing import CliRunner

from lowtide.cli.main import app

COLUMNS = 100


def verbs() -> Iterator[tuple[str, ...]]:
    """The words of every verb, of verbs inside a verb too: `("cache",)`, `("cache", "clear")`."""
    yield from _below((), typer.main.get_command(app))


def _below(words: tuple[str, ...], command: Any) -> Iterator[tuple[str, ...]]:
    if words:
        yield words
    for name, found in getattr(command, "commands", {}).items():
        yield from _below((*words, name), found)


def help_of(words: tuple[str, ...]) -> str:
    """What `lowtide WORDS --help` prints.

    Raises:
        RuntimeError: if it fails.
    """
    shown = CliRunner().invoke(
        app, [*words, "--help"], prog_name="lowtide", terminal_width=COLUMNS, max_content_width=COLUMNS
    )
    if shown.exit_code:
        raise RuntimeError(f"lowtide {' '.join(words)} --help exits with {shown.exit_code}: {shown.output}")
    return "\n".join(line.rstrip() for line in shown.stdout.strip().splitlines())


class CommandHelp(SphinxDirective):
    """One section per verb."""

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for words in verbs():
            title = " ".join(("lowtide", *words))
            section = nodes.section("", nodes.title("", "", nodes.literal("", title)), ids=[nodes.make_id(title)])
            section += nodes.literal_block("", help_of(words), language="text")
            self.state.document.note_implicit_target(section, section)
            found.append(section)
        return found


def setup(sphinx: Sphinx) -> dict[str, bool]:
    """Registers the directive."""
    sphinx.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
