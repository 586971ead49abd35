"""The ranks of a group as lowtide talks to them: on a gloo group of its own, in waits that hear of a failure elsewhere.

A rank that fails inside a step says so in the store; the others look there while they wait, so that they end within
seconds, with the cause, instead of at torch's time-out.

Units: `_s` seconds.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from lowtide.device.arena import nothing_engaged
from lowtide.device.process_groups import group_like, own_store
from lowtide.errors import RanksError

if TYPE_CHECKING:
    from lowtide.device.process_groups import Store

_LOG = logging.getLogger("lowtide")
_LOOK_s = 0.5  # between two looks for failures elsewhere
_GRACE_s = 2.0  # for a rank that failed and goes on: where all ranks fail alike, the next step may be taken
_PATIENCE_s = 60.0  # after which the log says for what this rank waits
_SHORT = 2000  # characters of another rank's error that are repeated
_NUMBER = itertools.count(1)


class Ranks:
    """The ranks that train one model.

    Arguments:
        group: in which they reduce gradients; every one of its ranks makes a `Ranks` at the same place of its program.
    """

    def __init__(self, group: distributed.ProcessGroup) -> None:
        self._group = group_like(group, "lowtide")
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        self._first = distributed.get_process_group_ranks(group)[0]
        members = "-".join(map(str, distributed.get_process_group_ranks(group)[:16]))
        self._prefix = f"lowtide/{members}/{next(_NUMBER)}"
        self._store = own_store(self._prefix)
        self._level = torch.zeros(2, dtype=torch.int64)
        self._abandoned: list[Any] = []  # what gloo may still write to

    def highest(self, numbers: tuple[int, int], call: int) -> tuple[int, int]:
        """The greatest of each of two numbers over all ranks.

        Arguments:
            call: in which this is asked; the same on every rank.

        Raises:
            RanksError: if another rank has failed.
        """
        level = self._level
        level[0], level[1] = numbers
        self._finish(
            lambda: distributed.all_reduce(level, distributed.ReduceOp.MAX, self._group, async_op=True), level, call
        )
        return int(level[0]), int(level[1])

    def gather(self, message: bytes, call: int) -> list[bytes]:
        """What every rank says, by rank.

        Raises:
            RanksError: if another rank has failed.
        """
        with nothing_engaged():
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            mine = torch.tensor([len(message)])
            self._finish(lambda: distributed.all_gather(sizes, mine, self._group, async_op=True), (sizes, mine), call)
            width = max(1, *(int(s) for s in sizes))
            texts = [torch.zeros(width, dtype=torch.uint8) for _ in range(self.size)]
            padded = torch.zeros(width, dtype=torch.uint8)
            padded[: len(message)] = _bytes(message)
            self._finish(
                lambda: distributed.all_gather(texts, padded, self._group, async_op=True), (texts, padded), call
            )
            return [t[: int(s)].numpy().tobytes() for t, s in zip(texts, sizes, strict=True)]

    def from_first(self, message: bytes, call: int) -> bytes:
        """What the first rank says, on every rank.

        Arguments:
            message: of account on the first rank.

        Raises:
            RanksError: if another rank has failed.
        """
        with nothing_engaged():
            size = torch.tensor([len(message)])
            self._finish(lambda: distributed.broadcast(size, self._first, self._group, async_op=True), size, call)
            text = _bytes(message) if self.rank == 0 else torch.zeros(int(size), dtype=torch.uint8)
            self._finish(lambda: distributed.broadcast(text, self._first, self._group, async_op=True), text, call)
            return text.numpy().tobytes()

    def tell(self, call: int, error: BaseException) -> None:
        """Tells the other ranks that a step ended here with an error, after it had begun."""
        try:
            self._store.set(_key(call), f"rank {self.rank} raised {said(error)}")
        except RuntimeError:
            _LOG.warning("the other ranks cannot be told of an error of this one: the store is gone")

    def watch(self) -> Ranks.Watch:
        """Looks for failures on a thread of its own."""
        return Ranks.Watch(own_store(self._prefix))

    class Watch:
        """Looks for what other ranks told.

        Arguments:
            store: a connection of its own.
        """

        def __init__(self, store: Store) -> None:
            self._store = store

        def heard(self, calls: Sequence[int]) -> str:
            """What a rank told of one of these calls; empty for nothing."""
            for call in calls:
                if self._store.check([_key(call)]):
                    return str(self._store.get(_key(call)).decode(errors="replace"))
            return ""

    def _finish(self, begin: Callable[[], Any], touched: object, call: int) -> None:
        """Waits for a collective, and looks meanwhile whether a rank has failed in this call or the one before."""
        begun = time.monotonic()
        heard_at, has_said = 0.0, False
        watch = Ranks.Watch(self._store)
        try:
            work = begin()
        except RuntimeError as error:  # gloo knows already that a rank is gone
            raise RanksError(self._why(watch, call), is_final=True) from error
        while True:
            try:
                work.wait(timedelta(seconds=_LOOK_s))
                return
            except RuntimeError as error:
                if work.is_completed():
                    raise RanksError(self._why(watch, call), is_final=True) from error
            now = time.monotonic()
            if not heard_at and watch.heard((call, call - 1)):
                heard_at = now
            if heard_at and now - heard_at > _GRACE_s:
                self._abandoned.append((work, touched))
                raise RanksError(f"{watch.heard((call, call - 1))}. {_NO_STEP}", is_final=True)
            if now - begun > _PATIENCE_s and not has_said:
                has_said = True
                _LOG.warning(
                    "rank %d waits at call %d of the model for other ranks. In training, every rank calls a fitted "
                    "model equally often; validate under torch.no_grad() or in model.eval().",
                    self.rank,
                    call,
                )

    def _why(self, watch: Ranks.Watch, call: int) -> str:
        """Why a collective failed: what a rank told before it ended, or that one has ended."""
        try:
            told = watch.heard((call, call - 1))
        except RuntimeError:  # the store has ended with the rank that held it
            told = ""
        return f"{told or 'a rank of this group has ended, or cannot be reached any more'}. {_NO_STEP}"


_NO_STEP = "No parameter of this rank has been changed by this step. Start the ranks anew, from the last checkpoint"


def said(error: BaseException) -> str:
    """An error as another rank repeats it."""
    text = str(error)
    return f"{type(error).__name__}: {text[:_SHORT]}{' ...' if len(text) > _SHORT else ''}"


def _key(call: int) -> str:
    return f"raised/{call}"


def _bytes(message: bytes) -> torch.Tensor:
    if not message:
        return torch.zeros(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)
