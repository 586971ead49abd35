"""`make docs` builds: every page and every reference, and a warning is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT


def test_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", tmp_path / "trees", "docs",
         tmp_path / "html"],
        cwd=ROOT, env=os.environ | {"LOWTIDE_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "html" / "reference" / "command-line.html").is_file()
