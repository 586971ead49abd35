"""Bytes, seconds, rates and fractions as people write them.

Units: `_B` bytes, `_s` seconds, `_Bps` bytes per second.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from lowtide.arguments import MOST, index_of, real_of, shown
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
_LONGEST = 64  # characters of a number that somebody means
_MOST_OF_PLAIN = 1e6
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

    def in_B(self, plain_B: Callable[[], int], device_B: Callable[[], int]) -> int:
        """The budget in bytes.

        Arguments:
            plain_B: finds out what the same step needs without lowtide, or refuses; called for a share of that alone.
            device_B: the same for the bytes of the device.
        """
        if self.size_B is not None:
            return self.size_B
        if self.of_plain is not None:
            return int(self.of_plain * plain_B())
        return int((self.of_device or 0.0) * device_B())


def parse_budget(text: int | float | str | Budget) -> Budget:
    """Reads a budget.

    Arguments:
        text: bytes (`6442450944`), `"6GiB"`, `"512 MB"`, `"60%"` (of the device) or `"60% of plain"`.

    Integers and floats may be numpy's, or a tensor of one integer.

    Raises:
        BudgetError: if it is malformed, zero or negative, more than 100 % of the device, or 2^63 bytes and more.
    """
    if isinstance(text, Budget):
        return _checked(text)
    if isinstance(text, bool):
        raise BudgetError(f"a budget cannot be {text!r}: {_REMEDY}")
    if (size_B := index_of(text)) is not None:
        return Budget(size_B=_positive(size_B, text))
    if (size := real_of(text)) is not None:
        if not size.is_integer():
            raise BudgetError(f"a budget of {text!r} bytes is not whole: {_REMEDY}")
        return Budget(size_B=_positive(int(size), text))
    if not isinstance(text, str):
        raise BudgetError(f"a budget cannot be {_article(text)}: {_REMEDY}")
    if len(text) > _LONGEST:
        raise BudgetError(f"cannot read the budget {shown(text)}, of {len(text):,} characters: {_REMEDY}")
    if match := _PERCENT.fullmatch(text):
        fraction = float(match[1]) / 100.0
        if fraction <= 0:
            raise BudgetError(f"a budget of {text!r} leaves no byte: {_REMEDY}")
        if match[2] == "plain":
            if fraction > _MOST_OF_PLAIN:
                raise BudgetError(f"a budget of {text!r} is no limit: {_REMEDY}")
            return Budget(of_plain=fraction)
        if fraction > 1:
            raise BudgetError(f"a budget of {text!r} is more than the device has: {_REMEDY}")
        return Budget(of_device=fraction)
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _SCALE:
        raise BudgetError(f"cannot read the budget {text!r}: {_REMEDY}")
    return Budget(size_B=_positive(int(Fraction(match[1].replace("_", "")) * _SCALE[match[2].lower()]), text))


def _checked(budget: Budget) -> Budget:
    """A budget that was put together by hand.

    Raises:
        BudgetError: if it says nothing, several things, or something impossible.
    """
    said = [share for share in (budget.size_B, budget.of_device, budget.of_plain) if share is not None]
    if len(said) != 1:
        raise BudgetError(f"a Budget says one of size_B, of_device and of_plain, and this one {len(said)}: {_REMEDY}")
    if budget.size_B is not None:
        return parse_budget(budget.size_B)
    share = real_of(said[0])
    most = _MOST_OF_PLAIN if budget.of_device is None else 1.0
    if share is None or not 0 < share <= most:
        raise BudgetError(f"a share of {shown(said[0])} is no budget: {_REMEDY}")
    return budget


def _article(value: object) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def parse_rate(text: int | float | str) -> float:
    """Reads the rate of a link.

    Arguments:
        text: bytes per second (`12e9`, `"12e9"`), or `"12 GB/s"`, `"11.2 GiB/s"`.

    Raises:
        LinkError: if it is malformed, zero, negative or without end.
    """
    if isinstance(text, str):
        match = _RATE.fullmatch(text)
        unit = "" if match is None else (match[2] or "").lower()
        if match is None or unit not in _SCALE:
            raise LinkError(f"cannot read the rate {shown(text)}: {_RATE_REMEDY}")
        rate_Bps = float(match[1].replace("_", "")) * _SCALE[unit]
    else:
        found = real_of(text)
        if found is None:
            raise LinkError(f"the rate of a link cannot be {_article(text)}: {_RATE_REMEDY}")
        rate_Bps = found
    if not 0 < rate_Bps <= MOST:
        raise LinkError(f"a link of {shown(text)} moves nothing, or all at once: {_RATE_REMEDY}")
    return rate_Bps


def _positive(size_B: int, text: object) -> int:
    if size_B <= 0:
        raise BudgetError(f"a budget of {shown(text)} leaves no byte: {_REMEDY}")
    if size_B > MOST:
        raise BudgetError(f"a budget of {shown(text)} is more than any machine has: {_REMEDY}")
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
    """A fraction for people: `"12.3 %"`; nothing has no sign."""
    return f"{round(fraction * 100, 1) + 0.0:.1f} %"
