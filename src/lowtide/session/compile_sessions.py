"""The sessions of `torch.compile`: graphs that come from one call of it share one, and so one budget.

Dynamo hands a backend its graphs one by one (training, evaluation, other shapes) and never says of which model they
are. What they have in common is the `options` that `torch.compile` was given: the same object every time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from weakref import WeakSet, WeakValueDictionary

from lowtide.session.session import Session

_SHARED: WeakValueDictionary[int, Session] = WeakValueDictionary()  # by the identity of the options
_ALL: WeakSet[Session] = WeakSet()


def session_for(options: object, make: Callable[[], Session], *, alone: bool) -> Session:
    """The session for a graph.

    Arguments:
        options: as `torch.compile` was given them; the session keeps them, so that nothing else gets their identity.
        make: makes a session.
        alone: whether the graph is one of several in one step, which would hinder each other under one budget.
    """
    known = None if alone else _SHARED.get(id(options))
    if known is not None:
        return known
    session = make()
    session.asked_with = options
    _ALL.add(session)
    if not alone:
        _SHARED[id(options)] = session
    return session


def compiled_sessions() -> list[Session]:
    """Sessions of compiled models whose code is still alive, in no order."""
    gc.collect()  # compiled code and its session refer to each other
    return list(_ALL)
