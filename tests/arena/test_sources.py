"""The arena's sources stand alone: the allocator is compiled from them on machines that have only a compiler."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "src" / "core"
COMPILER = shutil.which("g++") or "c++"


def shipped() -> set[str]:
    """What the wheel carries, by CMake's list."""
    found = re.search(r"set\(LOWTIDE_ARENA\n(.*?)\)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return {Path(line.strip()).name for line in found[1].splitlines() if line.strip()}


def included(name: str) -> set[str]:
    """The core's headers that a file includes, and those that they include."""
    direct = set(re.findall(r'#include "([^"]+)"', (CORE / name).read_text(encoding="utf-8")))
    return direct.union(*(included(header) for header in direct))


def test_the_wheel_carries_every_file_of_the_arena_and_no_other() -> None:
    sources = {path.name for path in CORE.glob("arena*.cpp")}
    assert shipped() == sources.union(*(included(name) for name in sources))


def test_they_compile_alone_and_in_a_later_standard(tmp_path: Path) -> None:
    for name in shipped():
        shutil.copy(CORE / name, tmp_path)
    sources = sorted(path.name for path in tmp_path.glob("*.cpp"))
    strict = ["-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Werror"]
    for command in (
        [COMPILER, "-std=c++17", "-c", *strict, *sources],
        [COMPILER, "-std=c++20", "-fsyntax-only", *strict, *sources],
    ):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
