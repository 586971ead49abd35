"""Every script in examples/ runs, as a user would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# As `python SCRIPT` would; but torchvision can be imported also where its wheel wants another torch.
RUN = """
import runpy, sys
sys.path.append({root!r})
from tests import torchvision_shim
torchvision_shim.install()
runpy.run_path({script!r}, run_name="__main__")
"""
LONG = ("huggingface_trainer", "largest_batch", "lightning_module", "torch_compile")  # a quarter of a minute each
SCRIPTS = [
    pytest.param(p, marks=pytest.mark.breadth) if p.stem in LONG else p
    for p in sorted((ROOT / "examples").glob("*.py"))
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_example_runs(script: Path, tmp_path: Path, measured: Path) -> None:
    environment = os.environ | {"LOWTIDE_CACHE_DIR": str(measured)}
    code = RUN.format(root=str(ROOT), script=str(script))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_there_are_examples() -> None:
    assert len(SCRIPTS) >= 3
