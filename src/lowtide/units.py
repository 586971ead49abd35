"""Bytes, seconds, rates and fractions as people write them.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from lowtide.errors import BudgetError, LinkError

_SCALE = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "m": 1000**2, "mb": 1000**2, "g": 1000**3, "gb": 1000**3, "t": 1000**4, "tb": 1000**4,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")
_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*(?:of\s+(plain|device|the\s+device))?\s*")
_RATE = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(?:([a-zA-Z]*?)\s*/\s*s)?\s*")
_RATE_REMEDY = 'write bytes per second as a number, "12e9", or "12 GB/s"'
_REMEDY = 'write bytes as an integer, "6GiB", "512MiB", "60%" (of the device) or "60% of plain"'


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget as it was asked for, before it is known what 100 % is.

    Exactly one of the fields is set: bytes, a fraction of the device, or a fraction of what the same step
    needs without lowtide.
    """

    size_B: int | None = None
    of_device: float | None = None
    of_plain: float | None = None

    def __str__(self) -> str:
        if self.size_B is not None:
            return format_B(self.size_B)
        if self.of_device is not None:
            return f"{self.of_device * 100:.4g}% of the device"
        return f"{(self.of_plain or 0.0) * 100:.4g}% of plain"


def parse_budget(text: int | float | str | Budget) -> Budget:
    """Reads a budget.

    Arguments:
        text: bytes (`6442450944`), `"6GiB"`, `"512 MB"`, `"60%"` (of the device) or `"60% of plain"`.

    Raises:
        BudgetError: if it is malformed, zero or negative, or more than 100 % of the device.
    """
    if isinstance(text, Budget):
        return text
    if isinstance(text, bool):
        raise BudgetError(f"a budget cannot be {text!r}: {_REMEDY}")
    if isinstance(text, int):
        return Budget(size_B=_positive(text, text))
    if isinstance(text, float):
        if not text.is_integer():
            raise BudgetError(f"a budget of {text!r} bytes is not whole: {_REMEDY}")
        return Budget(size_B=_positive(int(text), text))
    if not isinstance(text, str):
        raise BudgetError(f"a budget cannot be a {type(text).__name__}: {_REMEDY}")
    if match := _PERCENT.fullmatch(text):
        fraction = float(match[1]) / 100.0
        if fraction <= 0:
            raise BudgetError(f"a budget of {text!r} leaves no byte: {_REMEDY}")
        if match[2] == "plain":
            return Budget(of_plain=fraction)
        if fraction > 1:
            raise BudgetError(f"a budget of {text!r} is more than the device has: {_REMEDY}")
        return Budget(of_device=fraction)
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _SCALE:
        raise BudgetError(f"cannot read the budget {text!r}: {_REMEDY}")
    return Budget(size_B=_positive(int(float(match[1].replace("_", "")) * _SCALE[match[2].lower()]), text))


def parse_rate(text: int | float | str) -> float:
    """Reads the rate of a link.

    Arguments:
        text: bytes per second (`12e9`, `"12e9"`), or `"12 GB/s"`, `"11.2 GiB/s"`.

    Raises:
        LinkError: if it is malformed, zero, negative or without end.
    """
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        raise LinkError(f"the rate of a link cannot be a {type(text).__name__}: {_RATE_REMEDY}")
    if isinstance(text, str):
        match = _RATE.fullmatch(text)
        unit = "" if match is None else (match[2] or "").lower()
        if match is None or unit not in _SCALE:
            raise LinkError(f"cannot read the rate {text!r}: {_RATE_REMEDY}")
        rate_Bps = float(match[1].replace("_", "")) * _SCALE[unit]
    else:
        rate_Bps = float(text)
    if not math.isfinite(rate_Bps) or rate_Bps <= 0:
        raise LinkError(f"a link of {text!r} moves nothing, or all at once: {_RATE_REMEDY}")
    return rate_Bps


def _positive(size_B: int, text: object) -> int:
    if size_B <= 0:
        raise BudgetError(f"a budget of {text!r} leaves no byte: {_REMEDY}")
    return size_B


def format_B(size_B: float) -> str:
    """Bytes for people, in binary units with three significant digits: `"6.00 GiB"`."""
    size, sign = abs(float(size_B)), "-" if size_B < 0 else ""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    unit = units[0]
    digits = 0 if unit == "B" else (2 if size < 10 else 1 if size < 100 else 0)
    return f"{sign}{size:.{digits}f} {unit}"


def format_Bps(rate_Bps: float) -> str:
    """A rate for people, in decimal units with three significant digits, as makers give it: `"12.0 GB/s"`."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")):
        if rate_Bps >= scale or unit == "B":
            number = rate_Bps / scale
            digits = 2 if number < 10 else 1 if number < 100 else 0
            return f"{number:.{digits}f} {unit}/s"
    raise AssertionError("unreachable")


def format_s(time_s: float) -> str:
    """Seconds for people: `"1.20 s"`, `"35.1 ms"`, `"4.0 us"`."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(time_s) >= scale or unit == "us":
            return f"{time_s / scale:.3g} {unit}"
    raise AssertionError("unreachable")


def format_percent(fraction: float) -> str:
    """A fraction for people: `"12.3 %"`."""
    return f"{fraction * 100:.1f} %"
