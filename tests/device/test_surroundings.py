"""Facts of the process and machine, timing and the C library's heap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lowtide.device.clock import median_s, once_s
from lowtide.device.fingerprint import device_memory_B, device_name, fingerprint

GROUP = "proc/self/cgroup"
SECOND = "sys/fs/cgroup"


def test_the_fingerprint_follows_every_switch() -> None:
    before = fingerprint()
    assert before == fingerprint()
    assert before.key == fingerprint().key
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert fingerprint().key != before.key
    finally:
        torch.set_num_threads(threads)
    try:
        torch.use_deterministic_algorithms(True)
        assert fingerprint() != before
    finally:
        torch.use_deterministic_algorithms(False)
    try:
        torch.set_default_dtype(torch.float64)
        assert fingerprint().dtype == "float64"
    finally:
        torch.set_default_dtype(torch.float32)
    try:
        torch._C._set_mkldnn_enabled(False)
        assert not fingerprint().mkldnn
    finally:
        torch._C._set_mkldnn_enabled(before.mkldnn)
    assert fingerprint() == before
    assert before.torch == torch.__version__


def test_the_device_has_a_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU @ 1 GHz\n")
    assert device_name("cpu", info) == "Some CPU @ 1 GHz"
    assert device_name("cpu", tmp_path / "nothing")


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "limit_B"),
    [
        ({GROUP: "0::/a/b\n", f"{SECOND}/a/memory.max": "4096\n", f"{SECOND}/a/b/memory.max": "max\n"}, 4096),
        ({GROUP: "0::/a\n", f"{SECOND}/memory.max": "8192\n"}, 8192),
        ({GROUP: "0::/../..\n", f"{SECOND}/memory.max": "8192\n"}, 8192),
        ({GROUP: "3:cpu,memory:/x\n2:pids:/\n", f"{SECOND}/memory/x/memory.limit_in_bytes": "512\n"}, 512),
        ({GROUP: "3:memory:/x\n", f"{SECOND}/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_tightest_limit_counts(tmp_path: Path, files: dict[str, str], limit_B: int | None) -> None:
    physical_B = device_memory_B("cpu", tmp_path / "nowhere")
    assert device_memory_B("cpu", _tree(tmp_path, files)) == (limit_B or physical_B)


def test_timing_counts_its_calls() -> None:
    calls: list[int] = []
    assert median_s(lambda: calls.append(1), warmups=2, repeats=3, most=5, cap_s=10.0) >= 0
    assert len(calls) in range(7, 12)  # two warm-ups, then five; a few more where they are uneven
    assert once_s(lambda: calls.clear()) >= 0
    assert median_s(lambda: None, warmups=0, repeats=1, most=1, cap_s=0.0, earlier_s=(5.0, 5.0)) == 5.0


def test_the_heap_keeps_what_was_freed() -> None:
    """In a process of its own: the setting cannot be undone."""
    code = (
        "from lowtide.device.heap import is_warm, keep_warm\n"
        "import platform, resource, torch\n"
        "assert not is_warm()\n"
        "worked = keep_warm(touch_B=256 << 20)\n"
        "assert worked == is_warm() == (platform.libc_ver()[0] == 'glibc')\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "before = faults()\n"
        "for _ in range(3): torch.ones(16 << 20)\n"
        "assert not worked or faults() - before < 1000, faults() - before\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
