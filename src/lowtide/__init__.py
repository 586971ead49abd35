"""Train the same PyTorch network, bit for bit, inside the bytes you name.

Names are loaded when they are first used, so that planning from a file never imports torch.
"""

from __future__ import annotations

import importlib
import random
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "fit": "lowtide.frontends.fit",
    "unfit": "lowtide.frontends.fit",
    "plan": "lowtide.frontends.plan",
    "max_batch": "lowtide.frontends.max_batch",
    "fits": "lowtide.frontends.fits",
    "TrainStep": "lowtide.frontends.train_step",
    "eager": "lowtide.frontends.eager",
    "EagerStats": "lowtide.eager_engine.eager_stats",
    "verify": "lowtide.frontends.verify",
    "Verification": "lowtide.frontends.verification",
    "install_cuda": "lowtide.device.cuda",
    "plan_file": "lowtide.frontends.plan_file",
    "frontier": "lowtide.frontends.frontier",
    "frontier_file": "lowtide.frontends.frontier_file",
    "Frontier": "lowtide.frontends.frontier_in_hand",
    "Plan": "lowtide.frontends.plan_in_hand",
    "MaxBatch": "lowtide.frontends.max_batch",
    "Fits": "lowtide.frontends.fits",
    "memory_stats": "lowtide.frontends.memory",
    "MemoryStats": "lowtide.frontends.memory",
    "snapshot": "lowtide.frontends.memory",
    "departures": "lowtide.frontends.memory",
    "transfers": "lowtide.frontends.transfers",
    "Transfers": "lowtide.frontends.transfers",
    "TransferStats": "lowtide.device.transfer_stats",
    "parse_budget": "lowtide.units",
    "LowtideError": "lowtide.errors",
    "ArgumentError": "lowtide.errors",
    "BudgetError": "lowtide.errors",
    "BudgetWarning": "lowtide.errors",
    "LinkError": "lowtide.errors",
    "NumericsError": "lowtide.errors",
    "InexactCapture": "lowtide.errors",
    "InfeasibleBudget": "lowtide.errors",
    "OptimizerError": "lowtide.errors",
    "CaptureError": "lowtide.errors",
    "RecompileLimit": "lowtide.errors",
    "UnsupportedOperator": "lowtide.errors",
    "VerificationError": "lowtide.errors",
    "BackwardError": "lowtide.errors",
    "EagerError": "lowtide.errors",
    "PlanError": "lowtide.errors",
    "IllegalPlan": "lowtide.errors",
    "PlanFileError": "lowtide.errors",
    "PlanMismatch": "lowtide.errors",
}

if TYPE_CHECKING:
    from lowtide.device.cuda import install_cuda as install_cuda
    from lowtide.device.transfer_stats import TransferStats as TransferStats
    from lowtide.eager_engine.eager_stats import EagerStats as EagerStats
    from lowtide.errors import ArgumentError as ArgumentError
    from lowtide.errors import BackwardError as BackwardError
    from lowtide.errors import BudgetError as BudgetError
    from lowtide.errors import BudgetWarning as BudgetWarning
    from lowtide.errors import CaptureError as CaptureError
    from lowtide.errors import EagerError as EagerError
    from lowtide.errors import IllegalPlan as IllegalPlan
    from lowtide.errors import InexactCapture as InexactCapture
    from lowtide.errors import InfeasibleBudget as InfeasibleBudget
    from lowtide.errors import LinkError as LinkError
    from lowtide.errors import LowtideError as LowtideError
    from lowtide.errors import NumericsError as NumericsError
    from lowtide.errors import OptimizerError as OptimizerError
    from lowtide.errors import PlanError as PlanError
    from lowtide.errors import PlanFileError as PlanFileError
    from lowtide.errors import PlanMismatch as PlanMismatch
    from lowtide.errors import RecompileLimit as RecompileLimit
    from lowtide.errors import UnsupportedOperator as UnsupportedOperator
    from lowtide.errors import VerificationError as VerificationError
    from lowtide.frontends.eager import eager as eager
    from lowtide.frontends.fit import fit as fit
    from lowtide.frontends.fit import unfit as unfit
    from lowtide.frontends.fits import Fits as Fits
    from lowtide.frontends.fits import fits as fits
    from lowtide.frontends.frontier import frontier as frontier
    from lowtide.frontends.frontier_file import frontier_file as frontier_file
    from lowtide.frontends.frontier_in_hand import Frontier as Frontier
    from lowtide.frontends.max_batch import MaxBatch as MaxBatch
    from lowtide.frontends.max_batch import max_batch as max_batch
    from lowtide.frontends.memory import MemoryStats as MemoryStats
    from lowtide.frontends.memory import departures as departures
    from lowtide.frontends.memory import memory_stats as memory_stats
    from lowtide.frontends.memory import snapshot as snapshot
    from lowtide.frontends.plan import plan as plan
    from lowtide.frontends.plan_file import plan_file as plan_file
    from lowtide.frontends.plan_in_hand import Plan as Plan
    from lowtide.frontends.train_step import TrainStep as TrainStep
    from lowtide.frontends.transfers import Transfers as Transfers
    from lowtide.frontends.transfers import transfers as transfers
    from lowtide.frontends.verification import Verification as Verification
    from lowtide.frontends.verify import verify as verify
    from lowtide.units import parse_budget as parse_budget

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOME:
        if _HOME[name] in sys.modules:
            return getattr(sys.modules[_HOME[name]], name)
        state = random.getstate()  # some libraries draw numbers when they are imported
        try:
            return getattr(importlib.import_module(_HOME[name]), name)
        finally:
            random.setstate(state)
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
