"""What each segment of generated code takes from its caller and gives back.

A segment takes a list of arguments and returns a tuple. Which values they are is fixed by the captured graph;
only the slots differ from plan to plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.ir.call import Read


@dataclass(frozen=True, slots=True)
class Slot:
    """A result that is filled only if the plan carries the value to a later segment; else an empty tensor."""

    value: int | None


@dataclass(frozen=True, slots=True)
class Token:
    """The result that names the plan to later segments."""


Result = Read | Slot | Token | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Interface:
    """Arguments and results of one segment.

    Arguments:
        arguments: per position the value given there, or None for what the code has no use for.
        results: per position what is returned: a tensor (a value through views), a slot, the token, a number, None.
        constants: values that nobody passes, with their index in what the capture holds.
    """

    arguments: tuple[int | None, ...]
    results: tuple[Result, ...]
    constants: tuple[tuple[int, int], ...] = ()
