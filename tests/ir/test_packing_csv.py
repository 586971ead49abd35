"""Packings as comma-separated text: what is read, what is written, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide.errors import PackingError
from lowtide.ir.packing import Buffer, Packed, Packing
from lowtide.ir.packing_csv import read_table, write_table

PLAIN = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,5\n"


def file_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "buffers.csv"
    path.write_text(text, encoding="utf-8")
    return path


def packed(*offsets_B: int) -> Packed:
    return Packed(offsets_B, 9, 9, "hand", True, 0.0)


def test_a_plain_file(tmp_path: Path) -> None:
    table = read_table(file_of(tmp_path, PLAIN), capacity_B=9)
    assert table.packing == Packing((Buffer(0, 3, 4), Buffer(3, 9, 5)), 1, capacity_B=9)
    assert read_table(file_of(tmp_path, PLAIN), alignment_B=64).packing.alignment_B == 64


@pytest.mark.parametrize(
    "text",
    [
        "size,buffer_id,end,start\n4,b1,2,0\n5,b2,8,3\n",  # `end` is the last tick
        "buffer,begin,upper,size,colour\nb1,0,3,4,red\n\nb2,3,9,5,blue\n",
        "\ufeffid, lower, upper, size, gaps, alignment\nb1,0,3,4,,1\n b2 ,3, 9,5,,1\n",
    ],
)
def test_other_columns_and_names(tmp_path: Path, text: str) -> None:
    assert read_table(file_of(tmp_path, text)).packing == Packing((Buffer(0, 3, 4), Buffer(3, 9, 5)))


def test_given_offsets_and_alignment(tmp_path: Path) -> None:
    text = "id,lower,upper,size,alignment,offset\na,0,3,4,8,16\nb,3,9,5,8,\n"
    packing = read_table(file_of(tmp_path, text)).packing
    assert packing == Packing((Buffer(0, 3, 4, 16), Buffer(3, 9, 5)), 8)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    table = read_table(file_of(tmp_path, "id,note,lower,upper,size\nx,a b,0,3,4\ny,,1,9,5\n"))
    target = tmp_path / "out.csv"
    write_table(target, table, packed(5, 0))
    assert target.read_text() == "id,note,lower,upper,size,offset\nx,a b,0,3,4,5\ny,,1,9,5,0\n"
    again = read_table(target)
    assert again.packing.buffers == (Buffer(0, 3, 4, 5), Buffer(1, 9, 5, 0))
    write_table(target, again, packed(0, 4))
    assert [b.offset_B for b in read_table(target).packing.buffers] == [0, 4]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["buffers.csv", "out.csv"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ("id,lower,size\n", "lacks the columns upper"),
        ("id,lower,start,upper,size\n", "two columns for 'lower'"),
        ("id,lower,upper,size\na,0,1\n", "line 2: 3 cells for 4 columns"),
        ("id,lower,upper,size\na,0,1,2\nb,0,x,2\n", "line 3: upper is 'x'"),
        ("id,lower,upper,size\na,0,1,2.5\n", "line 2: size is '2.5'"),
        ("id,lower,upper,size,offset\na,0,1,2,high\n", "line 2: offset is 'high'"),
        ("id,lower,upper,size,gaps\na,0,9,2,3-4\n", "buffer a has gaps"),
        ("id,lower,upper,size,alignment\na,0,9,2,8\nb,0,9,2,16\n", "several alignments"),
    ],
)
def test_what_is_not_of_that_form_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(PackingError, match=r"buffers\.csv") as refusal:
        read_table(file_of(tmp_path, text))
    assert words in str(refusal.value)


def test_bytes_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "buffers.csv"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(PackingError, match="is not text"):
        read_table(path)
