"""Arguments of public functions: each is used, or refused with what was given, what is wanted and an example.

Numbers may be of any library: what counts as an integer is what Python would index with, so those of numpy do, and
tensors of one integer; a bool does not. Torch-free.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

from lowtide.errors import ArgumentError

_SHOWN = 60  # characters of what was given
MOST = 2**63 - 1
"""The largest integer that the compiled core takes."""


def shown(value: object) -> str:
    """A value's `repr`, cut to a length that fits in a message."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def whole(name: str, value: object, *, least: int = 0, most: int = MOST, example: str = "0") -> int:
    """Reads an integer.

    Raises:
        ArgumentError: if it is none, or out of range.
    """
    number = index_of(value)
    if number is None:
        raise ArgumentError(f"{name}={shown(value)} is no integer: write one, as in {name}={example}")
    if not least <= number <= most:
        limits = f"at least {least:,}" if number < least else f"up to {most:,}"
        raise ArgumentError(f"{name}={shown(value)} is out of range: write one {limits}, as in {name}={example}")
    return number


def number(name: str, value: object, *, above: float = -math.inf, example: str) -> float:
    """Reads a number that is not infinite.

    Raises:
        ArgumentError: if it is none, or not above the limit.
    """
    found = real_of(value)
    if found is None or not math.isfinite(found):
        raise ArgumentError(f"{name}={shown(value)} is no finite number: write one, as in {name}={example}")
    if not found > above:
        raise ArgumentError(f"{name}={shown(value)} is out of range: write one above {above:g}, as in {name}={example}")
    return found


def seconds(name: str, value: object) -> float | None:
    """Reads a limit in seconds; None for no limit.

    Raises:
        ArgumentError: if it is no number, or negative.
    """
    if value is None:
        return None
    found = real_of(value)
    if found is None or not found >= 0:
        raise ArgumentError(f"{name}={shown(value)} is no time: write seconds, as in {name}=30, or None for no limit")
    return found


def yes_or_no(name: str, value: object, *, or_none: bool = False) -> None:
    """Raises:
    ArgumentError: unless it is True or False (or None, where that means something).
    """
    if not (isinstance(value, bool) or (or_none and value is None)):
        wanted = "True, False or None" if or_none else "True or False"
        raise ArgumentError(f"{name}={shown(value)} says neither yes nor no: write {wanted}")


def function(name: str, value: object, example: str) -> None:
    """Raises:
    ArgumentError: unless it can be called, or is None.
    """
    if value is not None and not callable(value):
        raise ArgumentError(f"{name}={shown(value)} cannot be called: pass a function, as in {name}={example}")


def path(name: str, value: object, example: str) -> None:
    """Raises:
    ArgumentError: unless it is the path of a file, or None.
    """
    if value is not None and not isinstance(value, str | os.PathLike):
        raise ArgumentError(f"{name}={shown(value)} is no path: write a string or a Path, as in {name}={example}")


def check_file(value: object) -> None:
    """Raises:
    ArgumentError: unless it is the path of a file.
    """
    if value is None:
        raise ArgumentError('path=None names no file: write a string or a Path, as in path="graph.json"')
    path("path", value, '"graph.json"')


def text(name: str, value: object, example: str, *, or_none: bool = False) -> None:
    """Raises:
    ArgumentError: unless it is a string (or None, where that means something).
    """
    if not (isinstance(value, str) or (or_none and value is None)):
        raise ArgumentError(f"{name}={shown(value)} is no string: write {name}={example}")


def call_arguments(args: object, kwargs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Reads what a model is to be called with.

    Raises:
        ArgumentError: if `args` is no tuple or list, or `kwargs` no mapping by name.
    """
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        kind = type(args).__name__
        raise ArgumentError(
            f"args is a {kind}, not a tuple of what the model is called with: write args=(x,) for one argument"
        )
    if kwargs is None:
        return tuple(args), {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise ArgumentError(
            f"kwargs={shown(kwargs)} is no mapping by name: write what the model is called with, as in "
            'kwargs={"mask": mask}'
        )
    return tuple(args), dict(kwargs)


def index_of(value: object) -> int | None:
    """The integer that a value is; None where it is none, or a bool."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    if "bool" in str(getattr(value, "dtype", "")):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several, of other numbers, or without bytes
        return None


def real_of(value: object) -> float | None:
    """The number that a value is; None where it is none, or a bool. An integer too large for a float is infinite."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
