"""Holds the rule that one context of `lowtide.eager` is open in a process at a time. Torch-free."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from lowtide.errors import EagerError


@dataclass(eq=False)
class Place:
    """The one context that is open.

    Arguments:
        context: the open one; None: nobody.
        thread, process: where it was opened.
    """

    context: object | None = None
    thread: int = 0
    process: int = 0

    def take(self, context: object) -> None:
        """Takes it for a context of the calling thread.

        Raises:
            EagerError: if another one is open, here or in another thread.
        """
        if self.context is not None and self.process == os.getpid():
            if self.thread == threading.get_ident():
                raise EagerError(
                    "lowtide.eager is open here already: a budget inside a budget would count the same bytes twice. "
                    "Leave the inner context out; the outer one covers what runs inside"
                )
            raise EagerError(
                "lowtide.eager is open in another thread: there is one at a time in a process. Train one model after "
                "the other, or each in a process of its own"
            )
        self.context, self.thread, self.process = context, threading.get_ident(), os.getpid()

    def leave(self) -> None:
        """Gives it back."""
        self.context = None

    @property
    def is_here(self) -> bool:
        """Whether a context is open in the calling thread."""
        return self.context is not None and self.thread == threading.get_ident() and self.process == os.getpid()


place = Place()


def refuse_in_eager(what: str) -> None:
    """Raises:
    EagerError: if a context is open in this thread.
    """
    if place.is_here:
        raise EagerError(
            f"{what} has an arena of its own, which cannot be used inside lowtide.eager: call lowtide.unfit(model) "
            "first, or train it outside the context"
        )
