"""The command as a whole: its verbs, and that asking for help is cheap."""

from __future__ import annotations

import subprocess
import sys

from typer.testing import CliRunner

from lowtide.cli.main import app


def test_help_lists_the_verbs() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for verb in ("demo", "plan", "explain", "place"):
        assert verb in result.output


def test_every_verb_explains_its_options() -> None:
    for verb, option in (("demo", "--steps"), ("plan", "--budget"), ("explain", "--top"), ("place", "--capacity")):
        result = CliRunner().invoke(app, [verb, "--help"])
        assert result.exit_code == 0
        assert option in result.output


def test_an_unknown_verb_is_refused() -> None:
    assert CliRunner().invoke(app, ["conjure"]).exit_code == 2


def test_assembling_the_command_imports_no_torch() -> None:
    code = "import sys, lowtide.cli.main; sys.exit(any(m in sys.modules for m in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
