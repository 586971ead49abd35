"""Files changed at random: as trees of JSON, knowing what a field may be taken for, and byte by byte."""

from __future__ import annotations

import copy
import gzip
import random
from typing import Any

ESCAPES = "\x1b]0;title\x07\x1b[31m\u202e\x00"
MARKUP = "</script><script>alert(1)</script>\"'`"
_CODE = "**__import__('os').abort()"
_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 63, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, -(2**31), -(2**63),
    0.5, -0.0, 1e308, -1e308, 5e-324, {"$float": "nan"}, {"$float": "inf"}, {"$float": "-inf"}, {"$float": "x"},
    "", "a", "0", "-1", "9" * 40, "NaN", "\ud7ff", ESCAPES, MARKUP, _CODE, "x" * 10_000, "aten.relu.default",
    "host", "device", [], {}, [0], [-1], [[]], [[[[]]]], {"type": "ref", "index": 0}, [None] * 3,
)  # fmt: skip

Path = tuple[Any, ...]


def mutated_tree(tree: Any, dice: random.Random) -> Any:
    """A tree of JSON with one to three changes; the given one stays as it is."""
    changed = copy.deepcopy(tree)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        inside = isinstance(changed, dict) and changed.get("body") and dice.random() < 0.95
        place = changed["body"] if inside else changed
        path = _somewhere(place, dice)
        if path:
            _change(place, path, dice)
    return changed


def _somewhere(tree: Any, dice: random.Random) -> Path:
    """A path into a tree, each step of it as likely as any other: what stands alone is found as often as long lists."""
    path: Path = ()
    here, depth = tree, dice.choice((0.8, 0.98))
    while isinstance(here, dict | list) and here and (not path or dice.random() < depth):
        step = dice.choice(list(here)) if isinstance(here, dict) else dice.randrange(len(here))
        path, here = (*path, step), here[step]
    return path


def _change(tree: Any, path: Path, dice: random.Random) -> None:
    place = tree
    for step in path[:-1]:
        place = place[step]
    last, old = path[-1], place[path[-1]]
    how = dice.random()
    if how < 0.1:
        del place[last]
    elif how < 0.2 and isinstance(place, list):
        other = dice.randrange(len(place))
        place[last], place[other] = place[other], place[last]
    elif how < 0.25 and isinstance(place, list):
        place.insert(dice.randrange(len(place) + 1), copy.deepcopy(old))
    elif how < 0.3 and isinstance(place, dict):
        place[f"{last}{dice.choice(('', 's', ESCAPES))}x"] = place.pop(last)
    elif how < 0.55 and type(old) is int:
        place[last] = old + dice.choice((1, -1, 2, 8, -8, 64, 1000, -old, -2 * old, 2**40))
    elif how < 0.6 and isinstance(old, float):
        place[last] = old * dice.choice((-1.0, 0.0, 0.5, 2.0, 1e9, 1e-9))
    elif how < 0.65 and isinstance(old, list):
        place[last] = dice.choice((old[::-1], old[:-1], old + old, old[1:]))
    elif how < 0.75:
        found = _somewhere(tree, dice)
        value = tree
        for step in found:
            value = value[step]
        place[last] = copy.deepcopy(value) if len(repr(value)) < 10_000 else None
    else:
        place[last] = copy.deepcopy(dice.choice(_ODD))


def mutated_bytes(data: bytes, dice: random.Random) -> bytes:
    """Bytes with one to four changes: flipped, cut out, cut off, repeated, put in."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(changed) + 1)
        stop = min(len(changed), at + dice.choice((1, 2, 8, 100, 10_000)))
        how = dice.randrange(6)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << dice.randrange(8)
        elif how == 1:
            del changed[at:stop]
        elif how == 2:
            del changed[at:]
        elif how == 3:
            changed[at:at] = changed[at:stop]
        elif how == 4:
            changed[at:at] = dice.choice((b"\0", b"\xff\xfe", b"[" * 2000, b'{"a":' * 500, b"9" * 400, b"\n", b","))
        else:
            changed[at:stop] = dice.randbytes(stop - at)
    return bytes(changed)


def packed(data: bytes, dice: random.Random) -> bytes:
    """Compressed bytes, at times damaged."""
    whole = gzip.compress(data, mtime=0)
    how = dice.random()
    if how < 0.7:
        return whole
    return whole[: dice.randrange(len(whole))] if how < 0.85 else mutated_bytes(whole, dice)
