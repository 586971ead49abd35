"""What decides over an operator's result and is no argument: it has to be as it was when the operator runs again.

Units: none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
import torch


class Setting(msgspec.Struct, frozen=True):
    """How torch stood.

    Arguments:
        floats: the type of floats where none is named.
        threads: that share an operator's work.
        mkldnn: whether oneDNN may be used.
        gradients: whether they were on: fused recurrent layers make their workspace only then.
    """

    floats: torch.dtype
    threads: int
    mkldnn: bool
    gradients: bool

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Inside, torch stands so; afterwards as before."""
        before = present_setting()
        self._enforce(before)
        try:
            yield
        finally:
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


def present_setting() -> Setting:
    """How torch stands now."""
    mkldnn = torch._C._get_mkldnn_enabled()
    return Setting(torch.get_default_dtype(), torch.get_num_threads(), mkldnn, torch.is_grad_enabled())
