"""Train the same PyTorch network, bit for bit, inside the bytes you name.

Names are loaded when they are first used, so that planning from a file never imports torch.
"""

from __future__ import annotations

import importlib
import random
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULE_OF = {
    "fit": "lowtide.api.fit",
    "unfit": "lowtide.api.fit",
    "plan": "lowtide.api.plan",
    "max_batch": "lowtide.api.max_batch.max_batch",
    "fits": "lowtide.api.fits",
    "TrainStep": "lowtide.api.train_step",
    "eager": "lowtide.api.eager",
    "EagerStats": "lowtide.eager_engine.eager_stats",
    "verify": "lowtide.api.verify.verify",
    "Verification": "lowtide.results.verification",
    "install_cuda": "lowtide.device.cuda",
    "plan_file": "lowtide.api.plan_file",
    "frontier": "lowtide.api.frontier",
    "frontier_file": "lowtide.api.frontier_file",
    "Frontier": "lowtide.results.frontier",
    "Plan": "lowtide.results.plan",
    "MaxBatch": "lowtide.api.max_batch.max_batch",
    "Fits": "lowtide.api.fits",
    "memory_stats": "lowtide.api.memory",
    "MemoryStats": "lowtide.api.memory",
    "snapshot": "lowtide.api.memory",
    "misplaced_allocations": "lowtide.api.memory",
    "transfers": "lowtide.api.transfers",
    "Transfers": "lowtide.api.transfers",
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
    "RanksError": "lowtide.errors",
    "EagerError": "lowtide.errors",
    "PlanError": "lowtide.errors",
    "IllegalPlan": "lowtide.errors",
    "PlanFileError": "lowtide.errors",
    "PlanMismatch": "lowtide.errors",
}

if TYPE_CHECKING:
    from lowtide.api.eager import eager as eager
    from lowtide.api.fit import fit as fit
    from lowtide.api.fit import unfit as unfit
    from lowtide.api.fits import Fits as Fits
    from lowtide.api.fits import fits as fits
    from lowtide.api.frontier import frontier as frontier
    from lowtide.api.frontier_file import frontier_file as frontier_file
    from lowtide.api.max_batch.max_batch import MaxBatch as MaxBatch
    from lowtide.api.max_batch.max_batch import max_batch as max_batch
    from lowtide.api.memory import MemoryStats as MemoryStats
    from lowtide.api.memory import memory_stats as memory_stats
    from lowtide.api.memory import misplaced_allocations as misplaced_allocations
    from lowtide.api.memory import snapshot as snapshot
    from lowtide.api.plan import plan as plan
    from lowtide.api.plan_file import plan_file as plan_file
    from lowtide.api.train_step import TrainStep as TrainStep
    from lowtide.api.transfers import Transfers as Transfers
    from lowtide.api.transfers import transfers as transfers
    from lowtide.api.verify.verify import verify as verify
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
    from lowtide.errors import RanksError as RanksError
    from lowtide.errors import RecompileLimit as RecompileLimit
    from lowtide.errors import UnsupportedOperator as UnsupportedOperator
    from lowtide.errors import VerificationError as VerificationError
    from lowtide.results.frontier import Frontier as Frontier
    from lowtide.results.plan import Plan as Plan
    from lowtide.results.verification import Verification as Verification
    from lowtide.units import parse_budget as parse_budget

__all__ = sorted([*_MODULE_OF, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        if _MODULE_OF[name] in sys.modules:
            return getattr(sys.modules[_MODULE_OF[name]], name)
        state = random.getstate()  # some libraries draw numbers when they are imported
        try:
            return getattr(importlib.import_module(_MODULE_OF[name]), name)
        finally:
            random.setstate(state)
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
