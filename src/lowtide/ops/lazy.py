"""torch, imported when a kernel first needs it: what an implementation declares is read without."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _Torch:
        def __getattr__(self, name: str) -> Any:
            found = getattr(importlib.import_module("torch"), name)
            setattr(self, name, found)
            return found

    torch = _Torch()
