"""Tapes to replay: small ones by chance, and the published traces. Units: `_B` bytes."""

from __future__ import annotations

from functools import cache

import msgspec
from benchmarks.problem_set import TRACES

from lowtide.ir.tape import Leaf, Ran, Tape, load_tape, read_tape
from lowtide.ir.trace_lines import TraceLines
from tests.ir.traces import Eager, random_program

_LARGE = 2**14  # small blocks are evicted by few policies


def of(program: Eager, *, in_place: bool = True) -> Tape:
    """What an eager program wrote down, as a tape."""
    return read_tape(TraceLines("net.jsonl", "trace net.jsonl", program.text.encode()), in_place=in_place)


def at_random(seed: int, calls: int = 30, *, in_place: bool = True, scale: int = _LARGE) -> Tape:
    """Any program, with sizes times `scale`; some of its calls take workspaces."""
    tape = of(random_program(seed, calls), in_place=in_place)
    events = []
    for place, event in enumerate(tape.events):
        if isinstance(event, Leaf):
            event = Leaf(event.size_B * scale)
        elif isinstance(event, Ran):
            temps_B = ((place % 3 + 1) * scale, scale // 2) if (place + seed) % 5 == 0 else ()
            sizes_B = tuple(size_B * scale for size_B in event.sizes_B)
            event = msgspec.structs.replace(event, sizes_B=sizes_B, temps_B=temps_B)
        events.append(event)
    return msgspec.structs.replace(tape, events=tuple(events), peak_B=tape.peak_B * scale)


def chain(length: int) -> Tape:
    """A forward of equal calls, and a backward that reads each of their results."""
    eager = Eager()
    eager.constant("x0", 1)
    for k in range(length):
        eager.call("f", [f"x{k}"], [(f"x{k + 1}", _LARGE)])
    eager.call("loss", [f"x{length}"], [(f"g{length}", _LARGE)])
    for k in range(length, 0, -1):
        eager.call("b", [f"g{k}", f"x{k - 1}"], [(f"g{k - 1}", _LARGE)])
        eager.release(f"g{k}")
        eager.release(f"x{k}")
    return of(eager)


@cache
def published(name: str, *, in_place: bool) -> Tape:
    """A trace that DTR's authors recorded."""
    return load_tape(TRACES / f"{name}.jsonl.gz", in_place=in_place)
