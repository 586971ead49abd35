"""The policies there are. A new one is its own file and one line here; it earns the contract tests with it."""

from __future__ import annotations

from tests.oracle.policies.base import AbstractPolicy
from tests.oracle.policies.coop import Coop, CoopWithoutInPlace, CoopWithoutPartition, CoopWithoutWindows
from tests.oracle.policies.dte import Dte
from tests.oracle.policies.dtr import Dtr
from tests.oracle.policies.dtr_classes import DtrClasses
from tests.oracle.policies.dtr_local import DtrLocal
from tests.oracle.policies.lru import Lru
from tests.oracle.policies.msps import Msps
from tests.oracle.policies.size import Size
from tests.oracle.policies.tide import AbstractTide, Tide
from tests.oracle.policies.tide_memory import TideMemory

_ALL: tuple[type[AbstractPolicy], ...] = (
    Dtr,
    DtrClasses,
    DtrLocal,
    Lru,
    Size,
    Msps,
    Dte,
    Coop,
    CoopWithoutWindows,
    CoopWithoutPartition,
    CoopWithoutInPlace,
    Tide,
    TideMemory,
)

POLICIES: dict[str, type[AbstractPolicy]] = {policy.name: policy for policy in _ALL}


def policy_of(name: str, host_B: int = 0, link_Bps: float = 0.0) -> AbstractPolicy:
    """A fresh policy of that name.

    Arguments:
        host_B: host memory for values that are offloaded, by policies that do that.
        link_Bps: rate of copies to and from it; 0: none are made.
    """
    kind = POLICIES[name]
    return kind(host_B, link_Bps) if issubclass(kind, AbstractTide) else kind()
