"""Replays of recorded steps, at shares of the trace's own peak. Needs no torch.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.eager.floor import floor_B
from benchmarks.parts import Row
from benchmarks.problem_set import TRACES
from lowtide.eager_engine.policy_names import COPYING
from lowtide.eager_engine.replay import Rules, compiled_replay, compiled_tape
from lowtide.ir.tape import Ran, Tape, load_tape

RECORDED = TRACES / "recorded"
LIMIT = 2.0
PATIENCE = 10.0
"""As many times the step's cost, where the smallest share is sought."""
GRAIN = 0.01
"""How finely the smallest share is sought."""


def recorded() -> tuple[str, ...]:
    """Every trace that there is: published ones first."""
    return tuple(sorted(p.name.split(".")[0] for p in TRACES.glob("*.gz"))) + tuple(
        sorted(f"{RECORDED.name}/{p.name.split('.')[0]}" for p in RECORDED.glob("*.gz"))
    )


def trace_file(name: str) -> Path:
    """Of a name of `recorded`."""
    return TRACES / f"{name}.jsonl.gz"


LIMITED = Rules(limit=LIMIT)


@dataclass(frozen=True)
class Replay:
    """A trace, a policy, and a share of the trace's own peak.

    Arguments:
        rules: of the replay.
    """

    file: Path
    policy: str
    share: float
    rules: Rules = LIMITED


@cache
def _tape(file: Path, in_place: bool) -> tuple[Tape, Any]:
    """As it is read, and as the compiled engine reads it."""
    tape = load_tape(file, in_place=in_place)
    return tape, compiled_tape(tape)


def replayed(wanted: Replay) -> Row:
    """Runs it. `refused`: None, "memory" or "time"."""
    rules = wanted.rules
    if wanted.policy in COPYING:
        rules = msgspec.structs.replace(rules, in_place=False)
    budget_B = int(_tape(wanted.file, wanted.rules.in_place)[0].peak_B * wanted.share)
    tape, compiled = _tape(wanted.file, rules.in_place)
    result = compiled_replay(tape, wanted.policy, budget_B, rules, compiled=compiled)
    row: Row = msgspec.to_builtins(result)
    reason = result.refused
    return row | {"refused": None if reason is None else "time" if reason.startswith("slower") else "memory"}


def profile(file: str | os.PathLike[str]) -> Row:
    """What a trace is: calls, peak, floor."""
    tape, _ = _tape(Path(file), True)
    calls = sum(isinstance(event, Ran) for event in tape.events)
    return {"calls": calls, "peak_B": tape.peak_B, "floor_B": floor_B(tape)}


def smallest_share(file: Path, policy: str) -> float:
    """The smallest share, in steps of `GRAIN`, that runs within `PATIENCE`, sought by halving."""
    low, high = int(profile(file)["floor_B"] / profile(file)["peak_B"] / GRAIN), round(1 / GRAIN)
    patient = Rules(limit=PATIENCE)
    while high - low > 1:
        middle = (low + high) // 2
        if replayed(Replay(file, policy, middle * GRAIN, patient))["refused"] is None:
            high = middle
        else:
            low = middle
    return high * GRAIN
