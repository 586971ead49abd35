"""The true floor of a recorded step: what no policy can go below, since it must be there at one moment. Needs no torch.

At a call: its arguments and its results, a result that is written over an argument once; and every leaf that has a name. A write
into a leaf, such as a weight's update, asks for all that has a name and was computed from the old content, since nothing
can compute it again afterwards: those are leaves from then on. At the end: whatever has a name.

Units: `_B` bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lowtide.ir.tape import Died, Leaf, Ran, Tape

ALIGNMENT_B = 64


@dataclass(eq=False)
class _Instant:
    """What has a name now.

    Arguments:
        sizes_B: of every content that has a name.
        leaves: those of them that nothing can compute.
        origins: of every content ever made, the contents of leaves that it was computed from, a bit each.
    """

    sizes_B: dict[int, int] = field(default_factory=dict)
    leaves: set[int] = field(default_factory=set)
    origins: dict[int, int] = field(default_factory=dict)
    all_B: dict[int, int] = field(default_factory=dict)
    contents: int = 0
    leaves_B: int = 0

    def leaf(self, number: int, size_B: int) -> None:
        self.made(number, size_B, 1 << self.contents)
        self.contents += 1
        self.settle(number)

    def made(self, number: int, size_B: int, origins: int) -> None:
        self.sizes_B[number] = self.all_B[number] = size_B
        self.origins[number] = origins

    def settle(self, number: int) -> None:
        self.leaves.add(number)
        self.leaves_B += self.sizes_B[number]

    def died(self, number: int) -> None:
        size_B = self.sizes_B.pop(number)
        if number in self.leaves:
            self.leaves.remove(number)
            self.leaves_B -= size_B


def floor_B(tape: Tape) -> int:
    """The floor of a tape that was read in place. O(calls x leaves / 64)."""
    assert tape.in_place
    now, floor, number = _Instant(), 0, 0
    for event in tape.events:
        match event:
            case Leaf(size_B):
                number += 1
                now.leaf(number, _rounded(size_B))
            case Died(gone):
                if gone in now.sizes_B:
                    now.died(gone)
            case Ran():
                floor = max(floor, _ran(now, event, number + 1))
                number += len(event.sizes_B)
    return max(floor, now.leaves_B, sum(now.sizes_B.values()))


def _ran(now: _Instant, call: Ran, first: int) -> int:
    """What a call needs at once; `first` is the number of its first output."""
    over = {output: call.inputs[index] for index, output in call.consumes}
    for written in over.values():
        if written in now.leaves:
            for number in [n for n in now.sizes_B if n not in now.leaves and now.origins[n] & now.origins[written]]:
                now.settle(number)
    fresh_B = sum(_rounded(s) for index, s in enumerate(call.sizes_B) if index not in over)
    needed_B = now.leaves_B + fresh_B + sum(now.all_B[n] for n in call.inputs if n not in now.leaves)
    origins = 0
    for number in call.inputs:
        origins |= now.origins[number]
    for index, size_B in enumerate(call.sizes_B):
        number, written = first + index, over.get(index)
        was_leaf = written in now.leaves
        if written in now.sizes_B:
            now.died(written)
        if was_leaf:
            now.leaf(number, _rounded(size_B))
        else:
            now.made(number, _rounded(size_B), origins)
    return needed_B


def _rounded(size_B: int) -> int:
    return -(-size_B // ALIGNMENT_B) * ALIGNMENT_B
