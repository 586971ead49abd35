"""The policies there are. A new one is its own file and one line here; it earns the contract tests with it."""

from __future__ import annotations

from lowtide.dynamic.policies.base import AbstractPolicy
from lowtide.dynamic.policies.dtr_local import DtrLocal
from lowtide.dynamic.policies.lru import Lru

POLICIES: dict[str, type[AbstractPolicy]] = {policy.name: policy for policy in (DtrLocal, Lru)}
