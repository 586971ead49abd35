"""`lowtide place`: the published hard problems fit, results are written, and refusals say what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lowtide.cli.main import app
from lowtide.ir.check_packing import check_packing
from lowtide.ir.packing import Packed
from lowtide.ir.packing_csv import read_table

LAYOUTS = sorted((Path(__file__).resolve().parents[2] / "benchmarks" / "layouts").glob("*.csv"))
FEW = "id,lower,upper,size\na,0,3,4\nb,1,9,5\n"


def place(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["place", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture
def few(tmp_path: Path) -> Path:
    path = tmp_path / "few.csv"
    path.write_text(FEW)
    return path


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda p: p.name[0])
def test_the_published_problems_fit(layout: Path, tmp_path: Path) -> None:
    assert len(LAYOUTS) == 8
    target = tmp_path / "placed.csv"
    code, output = place(layout, "--capacity", 1048576, "-o", target)
    assert code == 0, output
    assert "of 1,048,576 B" in output
    table = read_table(target)
    offsets_B = tuple(b.offset_B or 0 for b in table.packing.buffers)
    check_packing(read_table(layout).packing, Packed(offsets_B, 1048576, 0, "file", False, 0.0))


def test_without_a_capacity_it_places_as_low_as_possible(few: Path) -> None:
    code, output = place(few)
    assert code == 0
    assert "placed 2 buffers in 9 B" in output
    assert "proved lowest" in output


def test_alignment_and_units(few: Path, tmp_path: Path) -> None:
    target = tmp_path / "placed.csv"
    code, output = place(few, "--capacity", "1KiB", "--alignment", 64, "--output", target)
    assert code == 0
    assert "128 of 1,024 B" in output
    assert sorted(line.rpartition(",")[2] for line in target.read_text().splitlines()[1:]) == ["0", "64"]


def test_what_cannot_fit_is_refused_with_the_reason(few: Path, tmp_path: Path) -> None:
    target = tmp_path / "placed.csv"
    code, output = place(few, "--capacity", 8, "-o", target)
    assert code == 2
    assert "9 B are live at tick 1" in output
    assert "at least 9 B" in output
    assert not target.exists()


def test_a_search_that_proves_a_capacity_too_small_says_so(tmp_path: Path) -> None:
    path = tmp_path / "given.csv"
    path.write_text("id,lower,upper,size,offset\na,0,4,4,2\nb,0,4,4,\n")
    code, output = place(path, "--capacity", 9)
    assert code == 2
    assert "tried every placement" in output
    assert "at least 10 B" in output


def test_too_little_work_is_said_to_be_that() -> None:
    code, output = place(LAYOUTS[0], "--capacity", 1048576, "--work", 0)
    assert code == 2
    assert "more --work" in output


@pytest.mark.parametrize(
    ("text", "words"),
    [("id,lower,upper,size\na,3,3,1\n", "ends before it begins"), ("what,is,this\n1,2,3\n", "lacks the columns")],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    code, output = place(path)
    assert code == 2
    assert "PackingError" in output
    assert words in output
    assert "Traceback" not in output


def test_files_and_capacities_that_are_not_there(few: Path) -> None:
    assert place(few.parent / "none.csv")[0] == 2
    assert "none.csv" in place(few.parent / "none.csv")[1]
    code, output = place(few, "--capacity", "60%")
    assert code == 2
    assert "share of nothing" in output
    assert place(few, "--capacity", "much")[0] == 2


def test_it_runs_where_torch_cannot_be_imported(few: Path) -> None:
    code = f"import sys; sys.modules['torch'] = None; from lowtide.cli.main import app; app(['place', {str(few)!r}])"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "placed 2 buffers" in done.stdout
