"""A fingerprint holds everything that decides how numbers are rounded: what is known of one says nothing of another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from lowtide.device.fingerprint import arithmetic, device_name, fingerprint, processor_kind

_FACTS = {"processor": "0", "vendor_id": "AuthenticAMD", "model": "1", "model name": "AMD EPYC"}


def processor(folder: Path, family: int = 25, flags: str = "avx2") -> Path:
    path = folder / f"{family} {flags}"
    facts = _FACTS | {"cpu family": str(family), "flags": f"fma {flags}"}
    path.write_text("".join(f"{name}\t: {value}\n" for name, value in facts.items()) + "\n")
    return path


def test_processors_with_one_name_on_the_box_are_told_apart(tmp_path: Path) -> None:
    files = [processor(tmp_path), processor(tmp_path, family=26), processor(tmp_path, flags="avx2 avx512f")]
    assert {device_name(cpuinfo=f) for f in files} == {"AMD EPYC"}
    caches = tmp_path / "cache"
    kinds = {processor_kind(f, caches) for f in files}
    (caches / "index0").mkdir(parents=True)
    (caches / "index0" / "size").write_text("512K\n")
    processor_kind.cache_clear()
    assert len(kinds | {processor_kind(files[0], caches)}) == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [("MKL_CBWR", "COMPATIBLE"), ("ONEDNN_MAX_CPU_ISA", "AVX2"), ("ATEN_CPU_CAPABILITY", "default")],
)
def test_settings_of_the_libraries_are_part_of_it(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    before = fingerprint().key
    monkeypatch.setenv(name, value)
    assert f"{name}={value}" in arithmetic()
    assert fingerprint().key != before


def test_a_setting_that_was_changed_after_the_start_is_neither_the_old_nor_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_start = arithmetic()
    monkeypatch.setenv("MKL_CBWR", "SSE4_2" if os.environ.get("MKL_CBWR") == "SSE4_1" else "SSE4_1")
    assert "earlier" in arithmetic()
    assert "earlier" not in at_start


def test_what_decides_no_rounding_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint().key
    monkeypatch.setenv("MKL_VERBOSE", "0")
    monkeypatch.setenv("PERSISTENT", os.sep)
    assert fingerprint().key == before


def test_torchs_own_switches_are_part_of_it() -> None:
    before = fingerprint().key
    torch.backends.mkldnn.set_flags(_enabled=False)
    try:
        assert fingerprint().key != before
    finally:
        torch.backends.mkldnn.set_flags(_enabled=True)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert fingerprint().key != before
    finally:
        torch.set_float32_matmul_precision(precision)
