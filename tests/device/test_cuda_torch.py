"""The GPU's arena against CUDA itself, without a GPU: CUDA's header, its runtime library, and torch's interface."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lowtide.device import shim_build

HERE = Path(__file__).parent
INSTALLS = """
import lowtide
from lowtide.device import cuda
lowtide.install_cuda("64MiB")
assert cuda.level() == "planned"
"""


def header_folder() -> Path | None:
    """Where a CUDA toolkit of this machine has its headers."""
    compiler = shutil.which("nvcc")
    places = [os.environ.get("CUDA_HOME", ""), str(Path(compiler).resolve().parents[1]) if compiler else ""]
    found = (Path(place) / "include" for place in (*places, "/usr/local/cuda") if place)
    return next((folder for folder in found if (folder / "cuda_runtime_api.h").is_file()), None)


def test_the_table_of_functions_is_as_cuda_declares_it() -> None:
    folder = header_folder()
    if folder is None:
        pytest.skip("no CUDA toolkit on this machine")
    command = [*shim_build.compiler(), "-std=c++20", "-fsyntax-only", f"-I{HERE.parents[1] / 'src/lowtide/_shim'}"]
    subprocess.run([*command, "-isystem", str(folder), str(HERE / "cudart_table.cpp")], check=True)


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA")
def test_torch_with_cuda_takes_the_allocator() -> None:
    """In a process of its own, since the allocator is chosen once; torch finds no GPU only when a tensor is made."""
    ran = subprocess.run([sys.executable, "-c", INSTALLS], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
