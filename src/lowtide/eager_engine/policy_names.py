"""Names of the eviction policies that the engine has, and which of them can do what. Torch-free.

The policies themselves are in `src/core/eager/policies/`.
"""

from __future__ import annotations

from lowtide._core import eager_policies

COPYING = frozenset({"coop-no-in-place"})
"""Policies that read a write in place as a copy, as DTR's simulator does: for replays alone."""
OFFLOADING = frozenset({"tide", "tide-memory"})
"""Policies that may offload a value to host memory instead of dropping it."""


def policy_names() -> tuple[str, ...]:
    """Every policy there is, in the order of the engine's catalogue."""
    return tuple(eager_policies())
