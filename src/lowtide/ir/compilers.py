"""Whose kernels run: those of PyTorch's operators, or those that Inductor compiles."""

from __future__ import annotations

EAGER, INDUCTOR = COMPILERS = ("eager", "inductor")
