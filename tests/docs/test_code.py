"""Every block of Python in README and documentation runs, top to bottom, and prints what the page shows after it.

A block of `text` after one of Python shows what was printed, `text labels` the same for the first column of a table;
`text sample` is not compared, since it depends on what was measured.
"""

from __future__ import annotations

import contextlib
import gc
import io
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests import torchvision_shim
from tests.docs.pages import PAGES, Block, blocks, name_of

torchvision_shim.install()

WITH_CODE = [page for page in PAGES if blocks(page, "python")]
_LONG = ("choosing", "compiled", "largest-batch")
_FIGURE = re.compile(r"-?\d[\d,]*(\.\d+)?(e-?\d+)?( ?(KiB|MiB|GiB|B|ms|us|s|%)(?!\w))?")


@pytest.fixture
def module(page: Path) -> Iterator[types.ModuleType]:
    """What the README takes for granted: a model, its input and its optimizer, in a module of their own."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    made = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
    vars(made).update(model=model, x=torch.randn(32, 64), opt=torch.optim.AdamW(model.parameters()))
    sys.modules[made.__name__] = made
    del model
    yield made
    del sys.modules[made.__name__]
    torch._dynamo.reset()
    for name in [n for n in vars(made) if not n.startswith("__")]:
        delattr(made, name)
    gc.collect()


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.breadth) if p.stem in _LONG else p for p in WITH_CODE],
    ids=name_of,
)
@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*treespec, LeafSpec")
@pytest.mark.filterwarnings("ignore:.*number of training batches", "ignore:.*validation_step. but have no")
def test_code_runs_and_prints_what_is_shown(
    page: Path, module: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = ""
    for block in blocks(page, "python", "text"):
        if block.language == "python":
            printed = _run(block, page, module)
        elif printed and block.role != "sample":
            _compare(block, page, printed)
            printed = ""


def _run(block: Block, page: Path, module: types.ModuleType) -> str:
    """Runs a block with the page's own line numbers, so that plans and traces name the page, and returns its output."""
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as page_of_output:
        exec(code, vars(module))
    return page_of_output.getvalue()


def _compare(block: Block, page: Path, printed: str) -> None:
    """Every line that is shown was printed, in that order; figures may differ, and "..." stands for anything."""
    told = _label if block.role == "labels" else _masked
    lines = iter([told(line) for line in printed.splitlines()])
    for number, shown in enumerate(block.text.splitlines(), start=block.line):
        if shown.strip() in ("", "..."):
            continue
        pattern = ".*".join(re.escape(part) for part in told(shown).split("..."))
        assert any(re.fullmatch(pattern, line) for line in lines), (
            f"{name_of(page)}:{number} shows\n{shown}\nwhich does not come (in this order) in\n{printed}"
        )


def _label(line: str) -> str:
    """The first column of a row."""
    return line.split("  ")[0]


def _masked(line: str) -> str:
    """A line with figures and widths taken out."""
    return re.sub(r"\s+", " ", _FIGURE.sub("#", line)).strip()


def test_pages_with_code_were_found() -> None:
    assert len(WITH_CODE) >= 5
