"""The compiled module on good and bad days: found, built once, kept whole, and refused with a remedy.

One real build is shared by all tests. Where a test is about what happens around a build, the compiler is a script that
answers with that build's result.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
import torch

from lowtide.device import shim, shim_build
from lowtide.device.shim_module import ShimModule
from lowtide.device.shim_selftest import first_failure
from lowtide.errors import ShimUnavailable

_SCRIPT = """#!/bin/sh
case "$*" in *--version*) echo "copying compiler 1.0"; exit 0;; esac
echo "$*" >> {log}
while [ "$1" != "-o" ]; do shift; done
case "$2" in *module.so) [ -e {wait} ] && echo $$ >> {started} && exec sleep 60; exec cp {built} "$2";; esac
: > "$2"
"""


class Workshop:
    """A cache of its own, and a compiler whose calls are counted and which can be made to hang."""

    def __init__(self, folder: Path, built: Path) -> None:
        self.cache, self.log, self.wait = folder / "cache", folder / "log", folder / "wait"
        self.started, self.compiler = folder / "started", folder / "copy++"
        text = _SCRIPT.format(log=self.log, wait=self.wait, started=self.started, built=built)
        self.compiler.write_text(text)
        self.compiler.chmod(0o755)

    def builds(self) -> int:
        """How often something was linked."""
        return sum("-shared" in line for line in self.log.read_text().splitlines()) if self.log.exists() else 0

    def leftovers(self) -> list[str]:
        """Everything in the cache that is neither a module nor a lock."""
        names = (path.name for path in self.cache.rglob("*") if path.is_file())
        return sorted(n for n in names if not n.startswith("shim-") and n != "build.lock")

    def modules(self) -> list[Path]:
        return sorted(self.cache.rglob("shim-*.so"))

    def python(self, code: str, **environment: str) -> subprocess.Popen[str]:
        """Another process that looks for its module here."""
        own = {"LOWTIDE_SHIM_DIR": str(self.cache), "CXX": str(self.compiler)}
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | own | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


@pytest.fixture
def workshop(tmp_path: Path, module: ShimModule, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path, Path(module.__file__))  # type: ignore[attr-defined]
    monkeypatch.setenv("CXX", str(made.compiler))
    return made


LOAD = "from lowtide.device import shim; shim.load(); print('loaded')"
REFUSED = """
from lowtide.device import shim
from lowtide.errors import ShimUnavailable
assert not shim.available() and shim.loaded() is None
for _ in range(2):
    try:
        shim.load()
    except ShimUnavailable as error:
        print(error)
import torch
assert torch.ones(1000).sum() == 1000
"""


def output_of(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def test_the_module_is_there_and_torch_behaves(module: ShimModule) -> None:
    assert shim.available()
    assert shim.loaded() is module is shim.load()
    assert module.is_in_force()
    assert first_failure(module) == ""


def test_importing_the_face_builds_nothing(workshop: Workshop) -> None:
    code = "from lowtide.device import arena, storage, shim, observer; assert shim.loaded() is None"
    output_of(workshop.python(code))
    assert workshop.builds() == 0


def test_a_second_look_finds_what_the_first_one_built(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    first = shim_build.find_or_build(workshop.cache)
    assert "building lowtide's memory arena" in caplog.text
    caplog.clear()
    assert shim_build.find_or_build(workshop.cache) == first
    assert (workshop.builds(), workshop.leftovers(), caplog.text) == (1, [], "")


def test_another_compiler_or_torch_is_another_module(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    first = shim_build.key([str(workshop.compiler)])
    assert shim_build.key([str(workshop.compiler), "-march=native"]) != first
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert shim_build.key([str(workshop.compiler)]) != first


@pytest.mark.parametrize("damage", ["truncated", "changed", "emptied"])
def test_a_damaged_module_is_built_again(workshop: Workshop, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    path = shim_build.find_or_build(workshop.cache)
    content = path.read_bytes()
    middle = len(content) // 2
    broken = {
        "truncated": content[:middle],
        "changed": content[:middle] + b"\0\1\2" + content[middle + 3 :],
        "emptied": b"",
    }
    path.write_bytes(broken[damage])
    assert shim_build.find_or_build(workshop.cache) == path
    assert path.read_bytes() == content
    assert (workshop.builds(), workshop.leftovers()) == (2, [])
    assert "is damaged; it is built again" in caplog.text


def test_two_processes_build_once(workshop: Workshop) -> None:
    both = [workshop.python(LOAD) for _ in range(2)]
    assert [output_of(process) for process in both] == ["loaded\n"] * 2
    assert (workshop.builds(), len(workshop.modules()), workshop.leftovers()) == (1, 1, [])


def test_a_build_that_is_killed_leaves_nothing_behind(workshop: Workshop) -> None:
    workshop.wait.touch()
    process = workshop.python(LOAD)
    for _ in range(6000):
        if workshop.started.exists():
            break
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert workshop.leftovers() != []
    assert workshop.modules() == []
    workshop.wait.unlink()
    assert shim_build.find_or_build(workshop.cache) in workshop.modules()
    assert (workshop.builds(), workshop.leftovers()) == (2, [])


def test_a_cache_that_cannot_be_written_to(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "lowtide")
    for folder in (Path("/proc/lowtide"), workshop.compiler / "below a file"):
        path = shim_build.find_or_build(folder)
        assert path.is_file()
        assert not path.is_relative_to(folder)
        assert "every process builds it anew: make that folder writable, or set LOWTIDE_CACHE_DIR" in caplog.text


def test_a_cache_that_cannot_be_written_to_may_hold_a_module(workshop: Workshop) -> None:
    path = shim_build.find_or_build(workshop.cache)
    path.parent.chmod(0o555)
    try:
        assert shim_build.find_or_build(workshop.cache) == path
    finally:
        path.parent.chmod(0o755)
    assert workshop.builds() == 1


def test_without_a_compiler_it_is_refused_with_a_remedy_and_torch_goes_on(workshop: Workshop) -> None:
    said = output_of(workshop.python(REFUSED, PATH="", CXX="")).splitlines()
    assert said[0] == said[1]
    assert "no C++ compiler was found" in said[0]
    assert "apt install g++" in said[0]


@pytest.mark.parametrize("nothing", ["/bin/true", "/bin/false"])
def test_a_compiler_that_makes_nothing_is_none(workshop: Workshop, nothing: str) -> None:
    said = output_of(workshop.python(REFUSED, CXX=nothing)).splitlines()
    if nothing == "/bin/true":
        assert said[0] == said[1]
        assert said[0].startswith("'/bin/true' is no C++ compiler")
        assert "apt install g++), or name it in CXX" in said[0]
    assert workshop.modules() == []


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_code_is_not_loaded_from_where_everybody_can_write(
    workshop: Workshop, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path = shim_build.find_or_build(workshop.cache)
    for folder in (path.parent, workshop.cache, path):
        folder.chmod(mode)
        caplog.clear()
        found = shim_build.find_or_build(workshop.cache)
        assert not found.is_relative_to(workshop.cache)
        assert "can be written to by everybody" in caplog.text
        assert "set LOWTIDE_CACHE_DIR to a folder of your own" in caplog.text
        folder.chmod(0o755)
    workshop.cache.chmod(0o1777)  # as a temporary folder: nobody replaces what is somebody else's
    assert shim_build.find_or_build(workshop.cache) == path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_code_is_not_loaded_from_somebody_else_s_folder(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    path = shim_build.find_or_build(workshop.cache)
    for owned in (path, path.parent):
        os.chown(owned, 12345, -1)
        assert not shim_build.find_or_build(workshop.cache).is_relative_to(workshop.cache)
        assert "belongs to user 12345" in caplog.text
        os.chown(owned, os.geteuid(), -1)
    assert shim_build.find_or_build(workshop.cache) == path


def test_it_can_be_kept_out(workshop: Workshop) -> None:
    said = output_of(workshop.python(REFUSED, LOWTIDE_SHIM="0"))
    assert "LOWTIDE_SHIM=0" in said
    assert workshop.builds() == 0


def test_a_torch_that_behaves_otherwise_is_refused(workshop: Workshop) -> None:
    other = "import torch\nclass Other(Exception): pass\ntorch.OutOfMemoryError = Other\n"
    said = output_of(workshop.python(other + REFUSED))
    assert f"torch {torch.__version__} does not behave as lowtide's memory arena needs" in said
    assert "a request past the arena raises torch.OutOfMemoryError" in said
    assert "LOWTIDE_SHIM=0" in said


def test_a_module_that_cannot_be_loaded(workshop: Workshop) -> None:
    """Built from other sources: loading it finds no entry point."""
    script = workshop.compiler.read_text()
    workshop.compiler.write_text(re.sub("exec cp .*?so ", "exec cp /bin/true ", script))
    said = output_of(workshop.python(REFUSED))
    assert "was built but cannot be loaded" in said
    assert workshop.builds() == 2


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken++"
    broken.write_text("#!/bin/sh\ncase $* in *--version*) echo 1;; *) echo 'no such standard'; exit 1;; esac\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(ShimUnavailable, match=r"(?s)cannot be compiled .* broken\+\+.*no such standard"):
        shim_build.find_or_build(tmp_path / "cache")
    assert [p.name for p in (tmp_path / "cache").rglob("*") if p.is_file()] == ["build.lock"]


@pytest.mark.parametrize("chosen", ["/nowhere/c++", "not-there"])
def test_a_compiler_that_is_not_there(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", chosen)
    with pytest.raises(ShimUnavailable, match="unset CXX"):
        shim_build.compiler()


def test_an_installation_without_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim_build, "_SOURCES", tmp_path)
    with pytest.raises(ShimUnavailable, match="install lowtide again"):
        shim_build.units()


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ShimUnavailable, match="runs on Linux"):
        shim_build.supported()


def test_headers_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(ShimUnavailable, match="apt install python3-dev"):
        shim_build.supported()
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(ShimUnavailable, match="official wheels"):
        shim_build.supported()


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWTIDE_SHIM_DIR", "/a")
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", "/b")
    assert shim_build.default_folder() == Path("/a")
    monkeypatch.delenv("LOWTIDE_SHIM_DIR")
    assert shim_build.default_folder() == Path("/b/shim")
    monkeypatch.delenv("LOWTIDE_CACHE_DIR")
    assert shim_build.default_folder().parts[-2:] == ("lowtide", "shim")
