"""The compiled core: an exact, incremental retention kernel, its searches, and floors. See `src/core/*.hpp`."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

KEEP: int
NEVER: int

class Program:
    gap_value: Ints
    def __init__(
        self,
        output_begin: Ints,
        output: Ints,
        read_begin: Ints,
        read: Ints,
        run_time: Longs,
        rerun_time: Longs,
        trace_peak: Longs,
        rerun_peak: Longs,
        rerun_through: Ints,
        part: Ints,
        size: Longs,
        pinned_from: Ints,
        lost_from: Ints,
        fixed: int,
    ) -> None: ...
    def gap_start(self, gap: int) -> int: ...
    def gap_end(self, gap: int) -> int: ...
    def gap_at(self, value: int, stage: int) -> int: ...
    def is_free(self, gap: int) -> bool: ...
    def operator_floors(self) -> Longs: ...
    def cut_floor(self, stage: int) -> int: ...

class Retention:
    taus: Ints
    time_ps: int
    peak_B: int
    peak_stage: int
    excess_B: int
    fits: bool
    is_possible: bool
    def __init__(self, program: Program, budget_B: int, closure_cap: int = ...) -> None: ...
    def set_budget(self, budget_B: int) -> None: ...
    def apply(self, gaps: list[int], taus: list[int]) -> bool: ...
    def commit(self) -> None: ...
    def undo(self) -> None: ...
    def assign(self, taus: Ints) -> bool: ...
    def live_B(self) -> Longs: ...
    def reruns(self) -> tuple[Ints, Ints]: ...
    def spans(self) -> tuple[Ints, Ints]: ...
    def is_valid(self) -> bool: ...

class Greedy:
    tried: int
    def __init__(self, state: Retention, candidates: int = ...) -> None: ...
    def run(self, steps: int) -> bool: ...

class Annealer:
    found: bool
    best_time_ps: int
    best_taus: Ints
    lowest_peak_B: int
    lowest_taus: Ints
    tried: int
    accepted: int
    def __init__(
        self, state: Retention, seed: int, moves: int, start: float, end: float, enough_ps: int = ...
    ) -> None: ...
    def run(self, moves: int) -> bool: ...
    def is_valid(self) -> bool: ...

class Lifetimes:
    count: int
    def __init__(
        self, start: list[int], length: list[int], size: list[int], fixed: list[int], period: int
    ) -> None: ...

def place_in_order(lifetimes: Lifetimes, order: list[int], best_fit: bool) -> list[int]: ...

class OrderSearch:
    best_height: int
    best_offsets: list[int]
    work: int
    tried: int
    kept: int
    def __init__(self, lifetimes: Lifetimes, order: list[int], best_fit: bool, seed: int, enough: int) -> None: ...
    def run(self, work: int) -> bool: ...
    def is_valid(self) -> bool: ...

class ValleySearch:
    offsets: list[int]
    work: int
    nodes: int
    tries: int
    def __init__(self, lifetimes: Lifetimes, capacity: int, seed: int) -> None: ...
    def run(self, work: int, tick: Callable[[], object]) -> bool | None: ...
