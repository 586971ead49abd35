"""The compiled core: an exact, incremental retention kernel, its searches, and floors. See `src/core/*.hpp`."""

from collections.abc import Callable, Mapping, Sequence, Set

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
        recompute_time: Longs,
        trace_peak: Longs,
        recompute_peak: Longs,
        recompute_through: Ints,
        part: Ints,
        size: Longs,
        pinned_from: Ints,
        lost_from: Ints,
        takeover_begin: Ints,
        takeover: Ints,
        takeover_peak: Longs,
        opened: Ints,
        fetch_B: Longs,
        send_B: Longs,
        fixed: int,
    ) -> None: ...
    def set_prices(self, send_ps_per_B: float, fetch_ps_per_B: float) -> None: ...
    def gap_start(self, gap: int) -> int: ...
    def gap_end(self, gap: int) -> int: ...
    def gap_at(self, value: int, stage: int) -> int: ...
    def can_fetch(self, gap: int) -> bool: ...
    def can_recompute(self, gap: int) -> bool: ...
    def is_free(self, gap: int) -> bool: ...
    def least_peak(self, stage: int) -> int: ...
    def operator_floors(self) -> Longs: ...
    def cut_floor(self, stage: int) -> int: ...

class Retention:
    taus: Ints
    time_ps: int
    compute_ps: int
    sent_B: int
    fetched_B: int
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
    def recomputations(self) -> tuple[Ints, Ints]: ...
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
        self,
        state: Retention,
        seed: int,
        moves: int,
        start: float,
        end: float,
        enough_ps: int = ...,
        twins: Ints | None = ...,
        focus: Sequence[tuple[int, int]] = ...,
    ) -> None: ...
    def run(self, moves: int) -> bool: ...
    def is_valid(self) -> bool: ...

class ChainTable:
    """Reversing a chain within slots of memory: see `src/core/chain_table.hpp`.

    `decode` gives per link the option saved, the link from whose turn on it is saved, and the same for what crosses
    behind it; -1 for from the start, -2 for not at all.
    """

    least: int
    def __init__(
        self,
        run_ps: list[int],
        alone_ps: list[int],
        running: list[int],
        reversing: list[int],
        behind: list[int],
        held: list[int],
        option_begin: list[int],
        option_saved: list[int],
        option_running: list[int],
        option_reversing: list[int],
        option_ps: list[int],
        slots: int,
    ) -> None: ...
    def time_ps(self, slots: int) -> float: ...
    def decode(self, slots: int) -> tuple[list[int], list[int], list[int]]: ...
    def is_valid(self) -> bool: ...

class Lifetimes:
    count: int
    def __init__(self, start: list[int], length: list[int], size: list[int], fixed: list[int], period: int) -> None: ...

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
    def run(self, work: int, tries: int, tick: Callable[[], object]) -> bool | None: ...

class Block:
    offset_B: int
    requested_B: int
    reserved_B: int
    tag: int

class Window:
    lo_B: int
    hi_B: int
    cost: float
    evicted_B: int
    evicted: list[Block]

class ArenaStatistics:
    capacity_B: int
    alignment_B: int
    in_use_B: int
    requested_B: int
    peak_in_use_B: int
    peak_requested_B: int
    low_high_B: int
    top_depth_B: int
    high_water_B: int
    largest_hole_B: int
    blocks: int
    holes: int
    allocations: int
    frees: int
    moves: int
    moved_B: int
    failures_for_capacity: int
    failures_for_contiguity: int
    refusals: int

class Arena:
    """Who has which bytes of an address range: see `src/core/arena.hpp`. Moves are (from_B, to_B, size_B), in order."""

    capacity_B: int
    alignment_B: int
    def __init__(self, capacity_B: int, alignment_B: int) -> None: ...
    def allocate(
        self, size_B: int, lo_B: int = ..., hi_B: int = ..., high: bool = ..., tag: int = ...
    ) -> int | None: ...
    def allocate_at(self, offset_B: int, size_B: int, high: bool = ..., tag: int = ...) -> bool: ...
    def free(self, offset_B: int) -> int: ...
    def size_of(self, offset_B: int) -> int | None: ...
    def find(self, byte_B: int) -> Block | None: ...
    def set_tag(self, offset_B: int, tag: int) -> bool: ...
    def blocks(self, lo_B: int = ..., hi_B: int = ...) -> list[Block]: ...
    def holes(self) -> list[tuple[int, int]]: ...
    def in_use_within(self, lo_B: int, hi_B: int) -> tuple[int, int]: ...
    def cheapest_window(
        self, need_B: int, costs: Mapping[int, float], lo_B: int = ..., hi_B: int = ...
    ) -> Window | None: ...
    def compact(
        self, movable: Set[int] | None = ..., lo_B: int = ..., hi_B: int = ...
    ) -> list[tuple[int, int, int]]: ...
    def slide_for(
        self, need_B: int, movable: Set[int] | None = ..., lo_B: int = ..., hi_B: int = ...
    ) -> tuple[int | None, list[tuple[int, int, int]]]: ...
    def statistics(self) -> ArenaStatistics: ...
    def reset_peaks(self) -> None: ...
    def check(self) -> str: ...

# Packed answers and packed pooling: see `src/core/bits.hpp` and `src/core/windows.hpp`. Tensors come as addresses.
def rounded(value: float, type: int) -> float: ...
def pack_answers(
    bits: int, x: int, count: int, type: int, question: int, low: float, high: float, threads: int
) -> None: ...
def pack_flags(bits: int, flags: int, count: int, threads: int) -> None: ...
def unpack_flags(flags: int, bits: int, count: int, threads: int) -> None: ...
def mask_gradient(out: int, gradient: int, bits: int, count: int, item_B: int, threads: int) -> None: ...
def scale_gradient(
    out: int, gradient: int, bits: int, count: int, type: int, on: float, off: float, threads: int
) -> None: ...
def mask_and_scale_gradient(
    out: int, gradient: int, bits: int, count: int, type: int, on: float, threads: int
) -> None: ...
def scale_gradient_by_flags(
    out: int, gradient: int, flags: int, count: int, type: int, on: float, off: float, threads: int
) -> None: ...
def compressed_B(count: int) -> int: ...
def compress(packed: int, x: int, count: int, type: int, threads: int) -> None: ...
def decompress(x: int, packed: int, count: int, type: int, threads: int) -> None: ...

Extents = tuple[int, int, int]

class Windows:
    """Windows of a maximum pooling; raises ValueError for those that cannot be packed."""

    width: int
    packed_B: int
    def __init__(
        self,
        outer: int,
        inner: int,
        input: Extents,
        output: Extents,
        kernel: Extents,
        stride: Extents,
        padding: Extents,
        dilation: Extents,
    ) -> None: ...

def pool_maximum(y: int, codes: int, x: int, windows: Windows, type: int, threads: int) -> None: ...
def pack_indices(codes: int, indices: int, windows: Windows, threads: int) -> None: ...
def pool_gradient(out: int, gradient: int, codes: int, windows: Windows, type: int, threads: int) -> None: ...
def pool_gradient_from_indices(
    out: int, gradient: int, indices: int, windows: Windows, type: int, threads: int
) -> None: ...

# Copy engines: see `src/core/copier.hpp`. Bytes come as addresses, kept alive until their copy has happened.
class Event:
    is_set: bool
    def __init__(self) -> None: ...
    def set(self) -> None: ...
    def settle(self) -> None: ...
    def wait(self) -> None: ...

class Copier:
    rate_Bps: float
    idle: bool
    def __init__(self, rate_Bps: float = ..., latency_s: float = ...) -> None: ...
    def submit(self, target: int, source: int, size_B: int, after: Sequence[Event] = ...) -> Event: ...
    def drain(self) -> None: ...
    def stop(self) -> None: ...
    def traffic(self) -> tuple[int, int, float]: ...

class Tape:
    """What an eager program did, as numbers: see `src/core/eager/tape.hpp`."""

    contents: int
    time_ns: int
    def __init__(self, words: Longs, kept: Longs) -> None: ...

class Replayed:
    """What came of a replay: see `src/core/eager/replay.hpp`. `event` is -1 where it ended with what is kept."""

    out_of_capacity: bool
    too_slow: bool
    event: int
    capacity_B: int
    in_use_B: int
    need_B: int
    pinned_B: int
    peak_B: int
    weighed: int
    evictions: int
    evicted_B: int
    recomputations: int
    recompute_ns: int
    searches: int
    search_s: float
    moves: int
    moved_B: int
    sent_B: int
    fetched_B: int
    fragmentation: float
    digest: int

def replay(
    tape: Tape,
    policy: str,
    budget_B: int,
    addresses: bool = ...,
    forgets: bool = ...,
    alignment_B: int = ...,
    small_B: int = ...,
    limit: float = ...,
    host_B: int = ...,
    link_Bps: float = ...,
) -> Replayed: ...
def eager_policies() -> list[str]: ...

class Rehearsed:
    """What a recorded step says of the next one, and the ways that spend less: see `src/core/eager/rehearsal.hpp`.

    Arguments:
        unguided_ns: spent on reruns and moves by tide; -1: it does not fit.
        spent_ns: of each way that spends less, the best first; `gain` is its place.
        ways: how many were tried.
    """

    unguided_ns: int
    spent_ns: list[int]
    ways: int
    stages: int
    def plans(self, gain: int) -> bool: ...
    def is_linear(self, gain: int) -> bool: ...
    def prepare(self, gain: int) -> None: ...
    def find(self, name: int, sizes_B: Sequence[int], next: int) -> int: ...
    def is_spare(self, number: int, last: int, now: int) -> bool: ...
    def distance_ns(self, number: int, last: int, now: int) -> int: ...
    def remaining_ns(self, now: int) -> int: ...
    def first_output(self, stage: int) -> int: ...
    def outputs(self, stage: int) -> int: ...

def rehearse(
    tape: Tape,
    capacity_B: int,
    host_B: int = ...,
    link_Bps: float = ...,
    weighted_log: float = ...,
    weight_B: float = ...,
) -> Rehearsed: ...
def step_digest(tape: Tape) -> int: ...
