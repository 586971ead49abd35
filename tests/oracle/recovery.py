"""Rematerialises evicted values, and what they were made of. Torch-free.

A frame is a call that waits for its inputs. When it begins, all of them count as used, and those that are resident are
pinned; the others come in the order of its arguments, each by a frame of its own, as in DTR (Kirisame et al., ICLR
2021). Frames lie on an explicit stack: chains of evicted values may be longer than a language's own stack is deep.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from tests.oracle.ledger import Call, Value


class Host(Protocol):
    """What recovery asks of the manager."""

    def pin(self, value: Value) -> None: ...
    def touch(self, value: Value) -> None: ...
    def leave(self, inputs: Sequence[Value]) -> None: ...
    def fetch(self, root: Value) -> None: ...
    def recompute(self, call: Call, wanted: Value, awaited: Set[int]) -> None: ...


@dataclass(slots=True)
class _Frame:
    """Inputs that are pinned one after another, then a call for the sake of one output; no call at the bottom."""

    inputs: Sequence[Value]
    call: Call | None = None
    wanted: Value | None = None
    absent: list[Value] = field(default_factory=list)
    next: int = 0
    pinned: list[Value] = field(default_factory=list)


@dataclass(slots=True)
class _Stack:
    """The frames in progress. Invariant: `awaited` counts what they still wait for, by id, without zeros."""

    manager: Host
    frames: list[_Frame] = field(default_factory=list)
    awaited: dict[int, int] = field(default_factory=dict)

    def begin(self, frame: _Frame) -> None:
        self.frames.append(frame)
        for value in frame.inputs:
            self.manager.touch(value)
        for value in frame.inputs:
            if value.resident:
                self.pin(value)
            else:
                frame.absent.append(value)
                self.awaited[value.id] = self.awaited.get(value.id, 0) + 1

    def advance(self) -> bool:
        """One step: pins an input, begins a frame for it, or runs a call; False when all is there."""
        frame = self.frames[-1]
        if frame.next < len(frame.absent):
            value = frame.absent[frame.next]
            if value.resident:  # by this step's frame, or together with an output that another frame wanted
                self.pin(value)
                frame.next += 1
                self._await_less(value)
            elif value.root.on_host:
                self.manager.fetch(value.root)
            else:
                assert value.call is not None, f"value {value.id} is a leaf without bytes"
                self.begin(_Frame(value.call.inputs, value.call, value))
            return True
        if frame.call is None:
            return False
        assert frame.wanted is not None
        self.manager.recompute(frame.call, frame.wanted, self.awaited.keys())
        self.manager.leave(frame.inputs)
        self.frames.pop()
        return True

    def pin(self, value: Value) -> None:
        self.manager.pin(value)
        self.frames[-1].pinned.append(value)

    def _await_less(self, value: Value) -> None:
        self.awaited[value.id] -= 1
        if not self.awaited[value.id]:
            del self.awaited[value.id]


def bring(inputs: Sequence[Value], manager: Host) -> None:
    """Makes values resident and pins each as often as it is named.

    Raises: what a recomputation raises; then nothing is pinned more than before.

    O(calls recomputed).
    """
    stack = _Stack(manager)
    try:
        stack.begin(_Frame(inputs))
        while stack.advance():
            pass
    except BaseException:
        for frame in reversed(stack.frames):
            manager.leave(frame.pinned)
        raise
