"""Names of compiled kernels in graphs: what they are called, what they are, and over which input they may be written.

`compiled.cpp_fused_add_relu.0123456789abcdef` is a kernel; `...abcdef.may_1_0` one whose first result may be written
over the second tensor that it is given; `...abcdef.may_1_0.over_1_0` the same kernel, which does so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

NAMESPACE = "compiled"
_FUSED = re.compile(r"(?:cpp_fused|triton_(?:poi|red|per|tem|for)_fused)_*")


def compiled_name(name: str, digest: str, over: Iterable[tuple[int, int]] = ()) -> str:
    """The name of a kernel.

    Arguments:
        name: a word, for people.
        digest: equal for equal kernels.
        over: pairs of a tensor that it is given and a result that may be written over it.
    """
    pairs = "".join(f"_{given:d}_{made:d}" for given, made in sorted(over))
    return f"{NAMESPACE}.{name}.{digest}" + (f".may{pairs}" if pairs else "")


def may_overwrite(op: str) -> tuple[tuple[int, int], ...]:
    """Pairs of a tensor that a kernel is given and a result that may be written over it; none for other operators."""
    parts = op.split(".")
    if parts[0] != NAMESPACE or len(parts) != 4 or not re.fullmatch(r"may(_\d{1,4}_\d{1,4}){1,64}", parts[3]):
        return ()
    numbers = [int(n) for n in parts[3].split("_")[1:]]
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def overwriting(op: str, given: int, made: int) -> str:
    """The name of a kernel that writes a result over a tensor that it is given."""
    return f"{op}.over_{given:d}_{made:d}"


def plain_name(op: str) -> tuple[str, tuple[int, int] | None]:
    """The kernel's name of one that may overwrite something, and what it overwrites; None where that is nothing."""
    plain, _, last = op.rpartition(".")
    found = re.fullmatch(r"over_(\d{1,4})_(\d{1,4})", last)
    return (op, None) if found is None else (plain, (int(found[1]), int(found[2])))


def said_of(op: str) -> str:
    """An operator's name as people read it: of a compiled kernel, what is fused in it."""
    parts = op.split(".")
    if parts[0] != NAMESPACE or len(parts) < 3:
        return op
    name, fused = _FUSED.subn("", parts[1], count=1)
    what = f"fused {name}" if fused and name else "fused copies" if fused else name
    return f"{what}, in place" if plain_name(op)[1] is not None else what
