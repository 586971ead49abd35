"""The compiled engine's sources stand alone: the eager runtime is compiled from them against the user's torch."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "src" / "core"
EAGER = CORE / "eager"


def listed(name: str) -> set[Path]:
    """A list of CMake's, with the files that its patterns stand for."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    patterns = dict(re.findall(r"file\(GLOB (\w+) CONFIGURE_DEPENDS (\S+)\)", text))
    found = re.search(rf"set\({name}\n(.*?)\n\)", text, re.DOTALL)
    assert found is not None
    lines = [line.strip() for line in found[1].splitlines() if line.strip()]
    globs = [patterns[line[2:-1]] for line in lines if line.startswith("${")]
    return {ROOT / line for line in lines if not line.startswith("${")}.union(*(ROOT.glob(g) for g in globs))


def test_every_source_is_built() -> None:
    assert listed("LOWTIDE_EAGER") == set(EAGER.rglob("*.cpp"))


def test_they_include_what_is_carried_with_them_and_the_standard_library() -> None:
    carried = listed("LOWTIDE_ARENA") | listed("LOWTIDE_RETENTION") | set(EAGER.rglob("*.[ch]pp"))
    for path in [*EAGER.rglob("*.[ch]pp")]:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r'#include "([^"]+)"', text):
            assert {(path.parent / name).resolve(), CORE / name} & carried, f"{path.name} includes {name}"
        for name in re.findall(r"#include <([^>]+)>", text):
            assert re.fullmatch(r"[a-z_]+", name), f"{path.name} includes {name}"
