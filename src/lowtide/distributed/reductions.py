"""DistributedDataParallel's reduction of a bucket, in a wait that ends when another rank fails.

Its own waits for a rank that never comes until torch's time-out, half an hour, and nothing on this rank can end that
wait. This one computes the same bits: a bucket is divided by the number of ranks, then reduced.

Units: `_s` seconds.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from lowtide.device.process_groups import reduce_by
from lowtide.distributed.ranks import Ranks
from lowtide.errors import RanksError

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

    from lowtide.device.process_groups import GradBucket

_LOOK_s = 0.5
_LOOKS = 4  # for as long a failed rank may still come, where all failed alike


def reduce_watchfully(model: DistributedDataParallel, ranks: Ranks) -> Reductions | None:
    """Has a model's buckets be reduced in such waits; None where they cannot be, and torch's own time-out holds.

    It cannot where the model has a communication hook of the user's; on NCCL, which ends its waits by itself; and where
    gradients are views of buckets and the number of ranks is no power of two: torch divides those otherwise.
    """
    group = model.process_group
    divides_alike = ranks.size & (ranks.size - 1) == 0 or not model.gradient_as_bucket_view
    if distributed.get_backend(group) != "gloo" or not divides_alike:
        return None
    found = Reductions(group, ranks)
    return found if reduce_by(model, found.reduce) else None


class Reductions:
    """The reductions of one model that are under way.

    Arguments:
        group: that reduces.
        ranks: the same ranks, which may fail.
    """

    def __init__(self, group: distributed.ProcessGroup, ranks: Ranks) -> None:
        self._group, self._watch = group, ranks.watch()
        self._factor = 1.0 / ranks.size
        self._call = 0
        self._lock = threading.Lock()
        self._waiting: dict[int, torch.futures.Future[Any]] = {}
        self._is_looking = False

    def begin(self, call: int) -> None:
        """A call of the model begins: failures of earlier ones are of no account any more."""
        self._call = call

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begins to reduce a bucket, in place."""
        buffer = bucket.buffer().mul_(self._factor)
        result: torch.futures.Future[Any] = torch.futures.Future()
        with self._lock:
            self._waiting[id(result)] = result
            if not self._is_looking:
                self._is_looking = True
                threading.Thread(target=self._look, name="lowtide: other ranks", daemon=True).start()
        work = distributed.all_reduce(buffer, group=self._group, async_op=True)
        assert work is not None

        def reduced(found: torch.futures.Future[Any]) -> None:
            try:
                outcome: object = found.value()[0]
            except RuntimeError as error:
                told = self._watch.heard((self._call,))
                outcome = RanksError(f"{told}. {_ENDED}", is_final=True) if told else error
            self._settle(result, outcome)

        work.get_future().add_done_callback(reduced)
        return result.then(_tensor_of)

    def _settle(self, result: torch.futures.Future[Any], outcome: object) -> None:
        """Gives a reduction its outcome, a tensor or an error; the first one holds."""
        with self._lock:
            if self._waiting.pop(id(result), None) is None:
                return
        result.set_result(outcome)

    def _look(self) -> None:
        """Ends the reductions under way when a rank tells that it failed in this call; ends with the last of them."""
        pause, heard = threading.Event(), 0
        while True:
            pause.wait(_LOOK_s)
            with self._lock:
                waiting = list(self._waiting.values())
                if not waiting:
                    self._is_looking = False
                    return
            try:
                told = self._watch.heard((self._call,))
            except RuntimeError:  # the store has ended with the rank that held it, and gloo says so
                continue
            heard += bool(told)
            if heard > _LOOKS:
                for result in waiting:
                    self._settle(result, RanksError(f"{told}. {_ENDED}", is_final=True))


_ENDED = "This rank's gradients cannot be reduced. No parameter has been changed; start the ranks anew"


def _tensor_of(result: torch.futures.Future[Any]) -> torch.Tensor:
    outcome = result.value()
    if isinstance(outcome, Exception):
        raise outcome
    assert isinstance(outcome, torch.Tensor)
    return outcome
