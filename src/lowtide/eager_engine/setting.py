"""What decides over an operator's result and is no argument: it has to be as it was when the operator runs again.

Units: none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
import torch

_OPERATORS = ("matmul", "conv", "rnn")
_get_precision, _set_precision = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter


class Setting(msgspec.Struct, frozen=True):
    """How torch stood.

    Arguments:
        floats: the type of floats where none is named.
        threads: that share an operator's work.
        mkldnn: whether oneDNN may be used.
        gradients: whether they were on: fused recurrent layers make their workspace only then.
        deterministic: whether algorithms had to be, whether others only warned, whether memory that is not written yet
            was filled then, and whether oneDNN had to be.
        precisions: with how many bits oneDNN multiplied floats, by kind of operator.
    """

    floats: torch.dtype
    threads: int
    mkldnn: bool
    gradients: bool
    deterministic: tuple[bool, bool, bool, bool]
    precisions: tuple[str, ...]

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Inside, torch stands so; afterwards as before."""
        before = present_setting()
        precisions = self.precisions if self.precisions == before.precisions else _precisions_as_set()
        self._enforce(before)
        if precisions is not self.precisions:
            _set_precisions(self.precisions)
        try:
            yield
        finally:
            if precisions is not self.precisions:
                _set_precisions(precisions)
            before._enforce(self)

    def _enforce(self, instead_of: Setting) -> None:
        if self.floats != instead_of.floats:
            torch.set_default_dtype(self.floats)
        if self.threads != instead_of.threads:
            torch.set_num_threads(self.threads)
        if self.mkldnn != instead_of.mkldnn:
            torch._C._set_mkldnn_enabled(self.mkldnn)
        if self.gradients != instead_of.gradients:
            torch._C._set_grad_enabled(self.gradients)
        if self.deterministic != instead_of.deterministic:
            must, only_warns, fills, mkldnn = self.deterministic
            torch._C._set_deterministic_algorithms(must, warn_only=only_warns)
            torch._C._set_deterministic_fill_uninitialized_memory(fills)
            torch._C._set_mkldnn_deterministic(mkldnn)


def present_setting() -> Setting:
    """How torch stands now."""
    deterministic = (
        torch._C._get_deterministic_algorithms(),
        torch._C._get_deterministic_algorithms_warn_only(),
        torch._C._get_deterministic_fill_uninitialized_memory(),
        torch._C._get_mkldnn_deterministic(),
    )
    precisions = tuple(_get_precision("mkldnn", op) for op in _OPERATORS)
    mkldnn, gradients = torch._C._get_mkldnn_enabled(), torch.is_grad_enabled()
    return Setting(torch.get_default_dtype(), torch.get_num_threads(), mkldnn, gradients, deterministic, precisions)


def _set_precisions(precisions: tuple[str, ...]) -> None:
    for op, precision in zip(_OPERATORS, precisions, strict=True):
        _set_precision("mkldnn", op, precision)


def _precisions_as_set() -> tuple[str, ...]:
    """What oneDNN's are set to: "none" where a wider scope's value is taken over."""
    return tuple("none" if _takes_over(op) else _get_precision("mkldnn", op) for op in _OPERATORS)


def _takes_over(op: str) -> bool:
    if _follows("generic", op):
        return True
    return not _follows("generic", "all") and _follows("mkldnn", op)


def _follows(backend: str, op: str) -> bool:
    """Whether the value of oneDNN's `op` is that of all of a backend, which is asked by changing that for a moment."""
    seen, there = _get_precision("mkldnn", op), _get_precision(backend, "all")
    _set_precision(backend, "all", "bf16" if there == "ieee" else "ieee")
    changes = _get_precision("mkldnn", op) != seen
    _set_precision(backend, "all", there)
    return changes
