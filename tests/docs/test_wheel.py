"""The wheel that `python -m build` makes works in a new environment that has only what it asks for."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PLAN = """
import sys, lowtide
assert sys.prefix in lowtide.__file__, lowtide.__file__
plan = lowtide.plan_file({graph!r}, budget="80% of plain", work=1000)
print(plan.explain(top=2))
assert "torch" not in sys.modules
"""


@pytest.mark.breadth
def test_a_built_wheel_plans_in_a_new_environment(tmp_path: Path) -> None:
    pytest.importorskip("build")
    dist, home = tmp_path / "dist", tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "build", "--wheel", "-o", dist, ROOT], check=True, capture_output=True)
    (wheel,) = dist.glob("*.whl")
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True, capture_output=True)
    site = Path(
        subprocess.check_output([python, "-c", "import site; print(site.getsitepackages()[0])"], text=True).strip()
    )
    site.joinpath("dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")  # torch is large
    code = PLAN.format(graph=str(ROOT / "benchmarks" / "problems" / "unet.json.gz"))
    done = subprocess.run([python, "-c", code], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fits")
