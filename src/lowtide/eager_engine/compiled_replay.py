"""The compiled engine's replays: the same decisions as `eager_engine/replay.py`, much sooner. Torch-free.

Units: `_B` bytes, `_ns` nanoseconds.
"""

from __future__ import annotations

import numpy as np

from lowtide._core import Replayed
from lowtide._core import Tape as CompiledTape
from lowtide._core import replay as replay_compiled
from lowtide.eager_engine.keeper import refusal
from lowtide.eager_engine.replay import ReplayResult, Rules
from lowtide.eager_engine.tape import Leaf, Ran, Tape
from lowtide.units import format_percent

_LEAF, _RAN, _DIED = range(3)  # as in src/core/eager/tape.hpp


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
    """Runs a tape inside a budget: see `replay`.

    Arguments:
        policy: its name in the catalogue.
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
        overhead=1 + done.rerun_ns / max(1, tape.time_ns),
        refused=_refused(done, tape, rules),
        evictions=done.evictions,
        evicted_B=done.evicted_B,
        reruns=done.reruns,
        rerun_ns=done.rerun_ns,
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
    """In the words of `replay`."""
    where = "when the results were asked for" if done.event < 0 else f"at event {done.event + 1} of {len(tape.events)}"
    if done.out_of_room:
        return f"out of memory {where}: {refusal(done.need_B, done.capacity_B, done.in_use_B, done.pinned_B)}"
    if done.too_slow:
        return f"slower than {format_percent(rules.limit or 0.0)} of the plain time {where}"
    return None
