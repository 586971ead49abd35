"""Files that are too long, too deep or packed too well are refused before they take memory."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.errors import PackingError, PlanFileError
from lowtide.ir import text, whole_file
from lowtide.ir.graph_file import read_graph
from lowtide.ir.packing_csv import read_table
from lowtide.ir.text import load_plan
from lowtide.ir.whole_file import read_whole, write_whole

_HEAD = '{"format":"lowtide","kind":"plan","version":1,"body":'


def test_a_file_packed_too_well_takes_no_memory(tmp_path: Path) -> None:
    """Half a gigabyte of blanks in half a megabyte, read by a process that may have a quarter of a gigabyte more."""
    path = tmp_path / "plan.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(512):
            file.write(b" " * 2**20)
    code = (
        "import resource, sys\n"
        "from lowtide.errors import PlanFileError\n"
        "from lowtide.ir.text import load_plan\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**26,) * 2)\n"
        "try:\n    load_plan(sys.argv[1])\n"
        "except PlanFileError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert "too long: unpacked, it has more than the 128 MiB that lowtide reads" in done.stdout, done.stderr


def test_long_files_are_refused_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("lowtide.ir.whole_file", "lowtide.ir.packing_csv"):
        monkeypatch.setattr(f"{module}.MOST_FILE_B", 1000)
    for name, read in (("p.json", load_plan), ("g.json", read_graph), ("t.jsonl", read_graph)):
        path = tmp_path / name
        path.write_text(" " * 1001)
        with pytest.raises(PlanFileError, match="too long"):
            read(path)
    table = tmp_path / "t.csv"
    table.write_text(" " * 1001)
    with pytest.raises(PackingError, match="too long"):
        read_table(table)
    with pytest.raises(PlanFileError, match="Nothing is written"):
        write_whole(tmp_path / "new.json", "x" * 1001)
    assert not (tmp_path / "new.json").exists()
    path.write_text("x" * 1000)
    assert len(read_whole(path, "it")) == 1000 == whole_file.MOST_FILE_B


@pytest.mark.parametrize(
    "body",
    [
        "[" * 500 + "]" * 500,
        '{"a":' * 900 + "1" + "}" * 900,
        "[" * 100_000,
        '{"graph":' + "9" * 5000 + "}",
    ],
    ids=["lists", "objects", "without end", "a number"],
)
def test_deep_files_are_refused(tmp_path: Path, body: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(f"{_HEAD}{body}}}")
    with pytest.raises(PlanFileError):
        load_plan(path)


def test_what_would_take_fifty_times_its_length_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MOST_ELEMENTS", 1000)
    path = tmp_path / "plan.json"
    path.write_text(f"{_HEAD}[{'[],' * 1000}[]]}}")
    with pytest.raises(PlanFileError, match="more than 1,000 elements"):
        load_plan(path)


def test_a_cell_that_is_too_long_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("id,lower,upper,size\n" + "a" * 200_000 + ",0,5,8\n")
    with pytest.raises(PackingError, match="line 2: field larger than field limit"):
        read_table(path)


@pytest.mark.parametrize("row", [f"0,0,5,{2**64}", f"0,{-(2**70)},5,8", f"0,0,5,8\n1,0,5,{2**62}"])
def test_bytes_and_ticks_that_no_machine_has_are_refused(tmp_path: Path, row: str) -> None:
    from lowtide.placers.portfolio import place

    path = tmp_path / "huge.csv"
    path.write_text(f"id,lower,upper,size\n{row}\n")
    with pytest.raises(PackingError):
        place(read_table(path).packing)
