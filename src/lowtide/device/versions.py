"""How often a tensor has been overwritten in place, which tells whether it still has its content."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

version_of: Callable[[torch.Tensor], int] = operator.attrgetter("_version")
"""The number of times that a tensor, or another view of its storage, has been overwritten in place.

Raises RuntimeError for tensors that were made in inference mode: these have none. It is no function in Python, for it
is called for every argument of every call.
"""
