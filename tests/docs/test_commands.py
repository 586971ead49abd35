"""What the pages tell people to type exists: verbs and options, targets of make, scripts, extras."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from lowtide.cli.main import app
from tests.docs.pages import PAGES, ROOT, blocks, name_of

SHELL = ("console", "bash", "sh")
COMMANDS = [
    pytest.param(line.removeprefix("$ "), id=f"{name_of(page)}: {line.removeprefix('$ ')[:60]}")
    for page in PAGES
    for block in blocks(page, *SHELL)
    for line in block.text.splitlines()
    if line.startswith("$ ")
]
OWN_SCRIPTS = {"train.py"}  # the reader's own


@pytest.mark.parametrize("line", COMMANDS)
def test_command_exists(line: str) -> None:
    words = shlex.split(line, comments=True)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):  # an environment variable for this one command
        words.pop(0)
    match words:
        case ["lowtide", *rest]:
            _check_verb(rest)
        case ["make", *targets]:
            makefile = ROOT.joinpath("Makefile").read_text(encoding="utf-8")
            assert targets
            assert all(re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE) for target in targets)
        case ["python", script, *_] if script.endswith(".py"):
            assert script in OWN_SCRIPTS or (ROOT / script).is_file()
        case ["pip", "install", *wanted]:
            assert wanted
        case ["apt", "install", *wanted]:
            assert wanted
        case ["git", "clone" | "submodule", *_] | ["cd", _]:
            pass
        case _:
            pytest.fail(f"nobody can tell whether this works: {line}")


def _check_verb(words: list[str]) -> None:
    """Parses the words as the command line would, without running anything."""
    command: Any = typer.main.get_command(app)
    parents = []
    while words and words[0] in getattr(command, "commands", {}):
        parents.append(words[0])
        command, words = command.commands[words[0]], words[1:]
    assert parents, f"there is no such verb: {words}"
    with command.make_context(" ".join(parents), list(words)):
        pass


def test_commands_were_found() -> None:
    assert len(COMMANDS) >= 5


def test_shell_blocks_mark_what_is_typed() -> None:
    for page in PAGES:
        for block in blocks(page, *SHELL):
            assert any(line.startswith("$ ") for line in block.text.splitlines()), f"{name_of(page)}:{block.line}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


def test_the_map_names_files_that_exist() -> None:
    """A path in the architecture's page is one of the repository's, or its end where no other folder is meant."""
    tops = [ROOT / name for name in ("src", "tests", "benchmarks", "docs")]
    known = {f"/{path.relative_to(ROOT)}" for top in tops for path in (top, *top.rglob("*"))}
    text = ROOT.joinpath("docs", "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+(?:\.(?:py|hpp|cpp|md)|/))`", text))
    assert len(named) > 100
    assert [n for n in sorted(named) if not any(path.endswith("/" + n.rstrip("/")) for path in known)] == []
