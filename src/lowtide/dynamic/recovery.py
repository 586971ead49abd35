"""Bringing evicted values back, and what they were made of. Torch-free.

A frame is a call that waits for its inputs. When it begins, all of them count as used, and those that are resident are
pinned; the others come in the order of its arguments, each by a frame of its own, as in DTR (Kirisame et al., ICLR
2021). Frames lie on an explicit stack: chains of evicted values may be longer than a language's own stack is deep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lowtide.dynamic.ledger import Call, Value


class Host(Protocol):
    """What recovery asks of the keeper."""

    def pin(self, value: Value) -> None: ...
    def touch(self, value: Value) -> None: ...
    def leave(self, inputs: Sequence[Value]) -> None: ...
    def fetch(self, root: Value) -> None: ...
    def rerun(self, call: Call, wanted: Value, awaited: set[int]) -> None: ...


@dataclass(slots=True)
class _Frame:
    """Inputs that are pinned one after another, then a call for the sake of one output; no call at the bottom."""

    inputs: Sequence[Value]
    call: Call | None = None
    wanted: Value | None = None
    absent: list[Value] = field(default_factory=list)
    next: int = 0
    pinned: list[Value] = field(default_factory=list)

    def begin(self, keeper: Host) -> None:
        for value in self.inputs:
            keeper.touch(value)
        for value in self.inputs:
            if value.resident:
                self.pin(value, keeper)
            else:
                self.absent.append(value)

    def pin(self, value: Value, keeper: Host) -> None:
        keeper.pin(value)
        self.pinned.append(value)


def bring(inputs: Sequence[Value], keeper: Host) -> None:
    """Makes values resident and pins each as often as it is named.

    Raises: what a rerun raises; then nothing is pinned more than before.

    O(calls run again).
    """
    frames = [_Frame(inputs)]
    try:
        frames[-1].begin(keeper)
        while _advance(frames, keeper):
            pass
    except BaseException:
        for frame in reversed(frames):
            keeper.leave(frame.pinned)
        raise


def _advance(frames: list[_Frame], keeper: Host) -> bool:
    """One step: pins an input, begins a frame for it, or runs a call; False when all is there."""
    frame = frames[-1]
    if frame.next < len(frame.absent):
        value = frame.absent[frame.next]
        if value.resident:  # by this step's frame, or together with an output that another frame wanted
            frame.pin(value, keeper)
            frame.next += 1
        elif value.root.on_host:
            keeper.fetch(value.root)
        else:
            assert value.call is not None, f"value {value.id} is a leaf without bytes"
            frames.append(_Frame(value.call.inputs, value.call, value))
            frames[-1].begin(keeper)
        return True
    if frame.call is None:
        return False
    assert frame.wanted is not None
    awaited = {value.id for other in frames for value in other.absent[other.next :]}
    keeper.rerun(frame.call, frame.wanted, awaited)
    keeper.leave(frame.inputs)
    frames.pop()
    return True
