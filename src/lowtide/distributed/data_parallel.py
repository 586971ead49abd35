"""How a model in DistributedDataParallel, or one that the user says trains on several ranks, comes to agree."""

from __future__ import annotations

import weakref

import torch
from torch import distributed

from lowtide.device.process_groups import is_data_parallel, joins, refills_buckets, what_is_unsupported
from lowtide.distributed.agreement import Agreement
from lowtide.distributed.ranks import Ranks
from lowtide.distributed.reductions import Reductions, reduce_watchfully
from lowtide.errors import ArgumentError, RanksError
from lowtide.ir.fidelity import Doubt

_JOINS = (
    "torch.distributed.algorithms.Join lets ranks end early, and lowtide asks all of them before every step: give "
    "every rank the same number of batches (DistributedSampler does), or train without Join"
)
_COMMUTES = 2
"""Ranks whose gradients have the same sum in either order."""
_REORDERED = Doubt(
    "on more than two ranks DistributedDataParallel adds up gradients in an order that follows from the order in which "
    "they become ready in a backward, and a planned backward has another one",
    "Train with find_unused_parameters=True, with which the order is always that of the parameters, or accept sums in "
    'another order with numerics="reassociated"',
)


def reordered_sums(model: torch.nn.Module | None) -> tuple[Doubt, ...]:
    """Why gradients that ranks add up may differ from plain PyTorch's; nothing for a model that trains alone.

    Torch fills its buckets anew after the first step, in the order in which gradients became ready, and the place of a
    gradient in a bucket decides which rank's part is added first.
    """
    if not is_data_parallel(model) or not refills_buckets(model):
        return ()
    return (_REORDERED,) if distributed.get_world_size(model.process_group) > _COMMUTES else ()


def agreement_of(model: torch.nn.Module, ranks: bool | None) -> Agreement | None:
    """What a model's ranks agree on before each step; None for a model that trains alone.

    Every rank has to call this: it makes a process group.

    Arguments:
        ranks: whether the ranks of torch's default group agree; None for those of a model in DistributedDataParallel.

    Raises:
        ArgumentError: if there are no ranks; if the model is wrapped in a way that lowtide does not train.
    """
    parallel = is_data_parallel(model)
    if is_data_parallel(model) and (option := what_is_unsupported(model)):
        raise ArgumentError(
            f"the model is in DistributedDataParallel with {option}, which lowtide does not train: leave it out"
        )
    if ranks is False or (ranks is None and not parallel):
        return None
    if not distributed.is_available() or not distributed.is_initialized():
        raise ArgumentError(
            "ranks=True, and there is no process group: call torch.distributed.init_process_group first"
        )
    group = model.process_group if parallel else distributed.group.WORLD
    assert isinstance(group, distributed.ProcessGroup)
    if distributed.get_world_size(group) == 1:
        return None
    return _Voters(model, Ranks(group)).agreement


class _Voters:
    """The ranks of one model.

    Arguments:
        model: named weakly: it owns the agreement.
    """

    def __init__(self, model: torch.nn.Module, ranks: Ranks) -> None:
        self._model, self._ranks = weakref.ref(model), ranks
        self._reductions: Reductions | None = None
        self._is_first = True
        self.agreement = Agreement(ranks, self._votes, self._begins)

    def _votes(self) -> bool:
        """Whether a call is one of training: others may be made by one rank alone."""
        model = self._model()
        return model is not None and model.training and torch.is_grad_enabled()

    def _begins(self, call: int) -> None:
        """Refuses what cannot be voted on, and has reductions watched from the first call on.

        Raises:
            RanksError: inside torch's `Join`.
        """
        model = self._model()
        if model is None or not is_data_parallel(model):
            return
        if joins(model):
            raise RanksError(_JOINS)
        if self._is_first:  # not earlier: until then the user may register a hook
            self._is_first = False
            self._reductions = reduce_watchfully(model, self._ranks)
        if self._reductions is not None:
            self._reductions.begin(call)
