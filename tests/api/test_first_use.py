"""The first use of a public name, which imports what it needs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import lowtide


def test_imports_leave_the_generator_of_python_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_library_that_draws.py").write_text("import random\nidentity = random.getrandbits(24)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(lowtide._MODULE_OF, "identity", "a_library_that_draws")
    before = random.getstate()
    assert isinstance(lowtide.identity, int)
    assert random.getstate() == before
