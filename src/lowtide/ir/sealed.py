"""Values of this process for later ones, as JSON with a digest: a file that was damaged is known before it is used.

A digest is no signature: whoever can write to the folder can write another one. It tells a disk that lost bytes, a
writer that was killed and an editor's slip from what lowtide wrote.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from lowtide.errors import PlanFileError

T = TypeVar("T", bound=msgspec.Struct)


def sealed(value: msgspec.Struct) -> bytes:
    """A value as one line of JSON, its fields with a digest of them."""
    tree = msgspec.to_builtins(value)
    return msgspec.json.encode({**tree, "digest": _digest(tree)})


def unsealed(data: bytes, type: type[T]) -> T:
    """The value that `sealed` wrote.

    Raises:
        PlanFileError: if it is damaged, or something else.
    """
    try:
        tree = msgspec.json.decode(data)
        if not isinstance(tree, dict) or tree.pop("digest", None) != _digest(tree):
            raise PlanFileError("its content does not match its digest")
        return msgspec.convert(tree, type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError) as error:
        raise PlanFileError(str(error)) from error


def _digest(tree: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(tree, order="sorted")).hexdigest()
