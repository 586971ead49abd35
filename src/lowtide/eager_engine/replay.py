"""Replays a recorded step under an eviction policy, inside a budget. Torch-free.

The rules of a replay say what a trace does not: how writes and views are read, whether bytes have addresses, and what
is remembered. `PUBLISHED` are those of DTR's simulator.

Units: `_B` bytes, `_s` seconds, `_ns` nanoseconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from lowtide._core import Replayed
from lowtide._core import Tape as CompiledTape
from lowtide._core import replay as replay_compiled
from lowtide.ir.tape import Leaf, Ran, Tape
from lowtide.units import format_B, format_percent

_LEAF, _RAN, _DIED = range(3)  # as in src/core/eager/tape.hpp


class Rules(msgspec.Struct, frozen=True):
    """What a trace does not say.

    Arguments:
        accounting: bytes in a row of addresses, or only their sum.
        in_place: how the tape was read: see `ir/tape.py`.
        forgets: what nothing can need again leaves the ledger.
        alignment_B: of addresses.
        small_B: blocks up to this size lie in a zone of their own, as in Coop's allocator.
        limit: stops where calls and recomputations cost more than this many times the calls alone; None for never.
    """

    accounting: Literal["addresses", "bytes"] = "addresses"
    in_place: bool = True
    forgets: bool = True
    alignment_B: int = 64
    small_B: int = 10 * 1024
    limit: float | None = 2.0


PUBLISHED = Rules(accounting="bytes", in_place=False, forgets=False)


class ReplayResult(msgspec.Struct, frozen=True):
    """What came of a replay.

    Arguments:
        policy: its name.
        budget_B, peak_B: the budget, and the most in use.
        overhead: time of calls and recomputations, by that of the calls alone; of a refused one, so far.
        refused: why it did not come to its end, or None.
        others: as in `EagerStats`.
    """

    policy: str
    budget_B: int
    peak_B: int
    overhead: float
    refused: str | None
    evictions: int
    evicted_B: int
    recomputations: int
    recompute_ns: int
    searches: int
    candidates: int
    search_s: float
    fragmentation: float
    moved_B: int
    sent_B: int
    fetched_B: int
    digest: str


def compiled_tape(tape: Tape) -> CompiledTape:
    """The tape as the compiled engine reads it. O(tape)."""
    words: list[int] = []
    names: dict[str, int] = {"": 0}
    for event in tape.events:
        if isinstance(event, Leaf):
            words += (_LEAF, event.size_B)
        elif isinstance(event, Ran):
            name = names.setdefault(event.name, len(names))
            lists = (event.inputs, event.sizes_B, event.views, event.consumes, event.temps_B)
            words += (_RAN, name, event.cost_ns, *map(len, lists), *event.inputs, *event.sizes_B)
            for pair in (*event.views, *event.consumes):
                words += pair
            words += event.temps_B
        else:
            words += (_DIED, event.number)
    return CompiledTape(np.array(words, dtype=np.int64), np.array(tape.kept, dtype=np.int64))


def compiled_replay(
    tape: Tape, policy: str, budget_B: int, rules: Rules | None = None, *, compiled: CompiledTape | None = None
) -> ReplayResult:
    """Runs a tape inside a budget; contents that are named at its end are resident and pinned then.

    Arguments:
        tape: read as `rules.in_place` says.
        policy: one of `policy_names`. One that learns from a step gets the tape several times; the last one counts.
        compiled: what `compiled_tape` made of the tape, where several replays share it.

    O(calls x what the policy looks at).
    """
    rules = rules or Rules()
    done = replay_compiled(
        compiled or compiled_tape(tape),
        policy,
        budget_B,
        addresses=rules.accounting == "addresses",
        forgets=rules.forgets,
        alignment_B=rules.alignment_B,
        small_B=rules.small_B,
        limit=0.0 if rules.limit is None else rules.limit,
    )
    return ReplayResult(
        policy=policy,
        budget_B=budget_B,
        peak_B=done.peak_B,
        overhead=1 + done.recompute_ns / max(1, tape.time_ns),
        refused=_refused(done, tape, rules),
        evictions=done.evictions,
        evicted_B=done.evicted_B,
        recomputations=done.recomputations,
        recompute_ns=done.recompute_ns,
        searches=done.searches,
        candidates=done.weighed,
        search_s=done.search_s,
        fragmentation=done.fragmentation,
        moved_B=done.moved_B,
        sent_B=done.sent_B,
        fetched_B=done.fetched_B,
        digest=f"{done.digest:016x}",
    )


def _refused(done: Replayed, tape: Tape, rules: Rules) -> str | None:
    """Why it did not come to its end, in words."""
    where = "when the results were asked for" if done.event < 0 else f"at event {done.event + 1} of {len(tape.events)}"
    if done.out_of_capacity:
        return f"out of memory {where}: {no_place(done.need_B, done.capacity_B, done.in_use_B, done.pinned_B)}"
    if done.too_slow:
        return f"slower than {format_percent(rules.limit or 0.0)} of the plain time {where}"
    return None


def no_place(need_B: int, capacity_B: int, in_use_B: int, pinned_B: int) -> str:
    """Says why a block finds no place though nothing more can be evicted, and what to do.

    Arguments:
        need_B: its bytes.
        capacity_B, in_use_B: the budget, and what of it cannot be evicted.
        pinned_B: of what is in use, by what runs now.
    """
    return (
        f"{format_B(need_B)} find no place in a budget of {format_B(capacity_B)}: {format_B(in_use_B)} "
        f"cannot be evicted, {format_B(pinned_B)} of them in use by what runs now. "
        "Raise the budget, or take a smaller batch."
    )
