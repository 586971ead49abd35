"""How the gradients that a captured backward is given lie in memory, which AOTAutograd takes into its own hands."""

from __future__ import annotations

from typing import Any

import torch


class _Anything:
    """Equal to whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def take_gradients_as_they_come() -> bool:
    """While a forward is compiled: keeps AOTAutograd from copying gradients that lie otherwise than it expects.

    Returns: whether that is so for all; not for gradients that are subclasses of tensors.
    """
    context = torch._guards.TracingContext.try_get()
    metas = getattr(getattr(context, "fw_metadata", None), "subclass_tangent_meta", None) or ()
    for meta in metas:
        layout: Any = getattr(meta, "memory_format", None)
        if type(meta).__name__ != "PlainTensorMeta" or layout is None:
            return False
        meta.memory_format = type(layout)(size=_Anything(), stride=_Anything())
    return bool(metas)
