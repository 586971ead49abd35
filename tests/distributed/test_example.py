"""The example for several ranks, as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from lowtide.device import shim

SCRIPT = Path(__file__).parents[2] / "examples" / "data_parallel.py"


@pytest.mark.skipif(not shim.available(), reason="no arena here")
@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo here")
def test_the_example_trains_on_two_ranks_as_without_lowtide(tmp_path: Path, measured: Path) -> None:
    environment = os.environ | {"LOWTIDE_CACHE_DIR": str(measured), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2" in done.stdout
    assert "rank 1 of 2" in done.stdout
