"""Mixed-integer programmes: built column by column and row by row, and solved by HiGHS.

One thread, the same result every time, and a solve can be stopped. Memory is counted in MiB and time in ms: raw bytes
and picoseconds break the solver's tolerances.

Units: `_B` bytes, `_s` seconds, `_ps` picoseconds.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

THREADS = 1  # HiGHS needs the same number in every instance of a process
MIB = 2.0**20
PS_PER_MS = 1e9
INFINITE: float = highspy.kHighsInf
_POLL_s = 0.05
_TOLERANCE = 1e-6  # HiGHS's feasibility tolerance, absolute, per row

Entry = tuple[int, float]
"""A column, and its number in a row."""


class Milp:
    """Minimise the columns' costs subject to the rows."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.whole: list[bool] = []
        self.starts, self.entries = [0], list[Entry]()
        self.least: list[float] = []
        self.most: list[float] = []

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return len(self.cost)

    def column(self, cost_ms: float = 0.0, low: float = 0.0, high: float = 1.0, *, whole: bool = True) -> int:
        """Adds a column; returns its index."""
        self.cost.append(cost_ms)
        self.low.append(low)
        self.high.append(high)
        self.whole.append(whole)
        return len(self.cost) - 1

    def measure(self, cost_ms: float = 1.0) -> int:
        """Adds a column of any size from 0 on, each unit of which costs `cost_ms`; returns its index."""
        return self.column(cost_ms, high=INFINITE, whole=False)

    def row(self, entries: Iterable[Entry], least: float = 0.0, most: float = INFINITE) -> int:
        """Adds a row whose sum lies between two numbers; returns its index. A column may stand in it once."""
        self.entries.extend(entries)
        self.starts.append(len(self.entries))
        self.least.append(least)
        self.most.append(most)
        return len(self.least) - 1

    def at_most(self, entries: Iterable[Entry], most: float) -> int:
        """Adds a row whose sum has to be `most` or less; returns its index."""
        return self.row(entries, -INFINITE, most)

    def violation(self, values: NDArray[np.float64]) -> float:
        """How far some values of the columns miss their bounds and rows at most. O(model)."""
        at = np.array(self.starts[:-1])
        columns, numbers = self._flat()
        terms = numbers * values[columns]
        sums = np.add.reduceat(np.append(terms, 0.0), at) * (np.diff(self.starts) > 0)
        misses = (self.least - sums, sums - self.most, self.low - values, values - self.high)
        return max(float(miss.max(initial=0.0)) for miss in misses)

    def _flat(self) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Columns and numbers of all rows, one after the other."""
        columns, numbers = zip(*self.entries, strict=True) if self.entries else ((), ())
        return np.array(columns, dtype=np.int32), np.array(numbers, dtype=np.float64)

    def model(self, *, relaxed: bool = False) -> highspy.HighsLp:
        """What HiGHS takes.

        Arguments:
            relaxed: whether columns may be fractions.
        """
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = self.columns, len(self.least)
        model.col_cost_, model.col_lower_, model.col_upper_ = (np.array(x) for x in (self.cost, self.low, self.high))
        model.row_lower_, model.row_upper_ = np.array(self.least), np.array(self.most)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(self.starts, dtype=np.int32)
        model.a_matrix_.index_, model.a_matrix_.value_ = self._flat()
        if not relaxed:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            model.integrality_ = [kinds[whole] for whole in self.whole]
        return model


def capacity_MiB(bytes_B: int, most_B: int) -> float:
    """A knapsack's capacity in MiB, loosened by more than the solver's rounding, so that no bound is too high.

    Arguments:
        bytes_B: of the knapsack.
        most_B: the sum of all that may be put in.
    """
    size = bytes_B / MIB
    return size + 8.0 * _TOLERANCE * (1.0 + abs(size)) + 1e-12 * most_B / MIB


def proved_ps(bound_ms: float) -> float:
    """A solver's dual bound in picoseconds, lowered by more than its rounding."""
    return max(0.0, (bound_ms * (1.0 - 1e-7) - 1e-6) * PS_PER_MS)


class SilentHighs(highspy.Highs):  # type: ignore[misc]
    """HiGHS that writes nothing to the standard output.

    Releases differ in which call writes the first line: in 1.16 it is the constructor's, when it enables callbacks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.silent()

    def enableCallbacks(self) -> None:
        """Enables callbacks, in silence."""
        self.silent()
        super().enableCallbacks()


@dataclass(frozen=True, slots=True)
class Effort:
    """When to stop.

    Arguments:
        close_ms: distance between solution and bound that is close enough.
        nodes: most nodes of the search tree; keeps the result independent of the machine's speed.
        limit_s: seconds; None for no limit.
        stop: set by another thread that no longer wants the result.
    """

    close_ms: float = 0.0
    nodes: int = 200
    limit_s: float | None = None
    stop: threading.Event | None = None


@dataclass(frozen=True, slots=True)
class Solved:
    """What the solver says.

    Arguments:
        bound_ms: proved; 0 where nothing was.
        impossible: whether it proved that there is no solution.
        columns: of the best solution, None without one.
        nodes: of the search tree.
        whole: whether the solution is within `close_ms` of the bound.
    """

    bound_ms: float
    impossible: bool
    columns: NDArray[np.float64] | None
    nodes: int
    whole: bool


def solve(model: highspy.HighsLp, effort: Effort) -> Solved:
    """Solves a mixed-integer programme.

    Raises:
        KeyboardInterrupt: on Ctrl-C, within about a second.
    """
    highs = SilentHighs()
    options: dict[str, int | float] = {
        "threads": THREADS,
        "random_seed": 0,
        "mip_rel_gap": 1e-6,
        "mip_abs_gap": effort.close_ms,
        "mip_max_nodes": effort.nodes,
    }
    if effort.limit_s is not None:
        options["time_limit"] = max(0.01, effort.limit_s)
    for option, value in options.items():
        highs.setOptionValue(option, value)
    highs.passModel(model)
    run(highs, effort.stop)
    status, info = highs.getModelStatus(), highs.getInfo()
    impossible = status == highspy.HighsModelStatus.kInfeasible
    failed = impossible or status == highspy.HighsModelStatus.kNotset
    found = not failed and info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    bound_ms = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) and not failed else 0.0
    return Solved(
        bound_ms,
        impossible,
        np.asarray(highs.getSolution().col_value) if found else None,
        max(0, int(info.mip_node_count)),
        status == highspy.HighsModelStatus.kOptimal,
    )


def run(highs: highspy.Highs, stop: threading.Event | None = None) -> None:
    """Solves in a thread of its own, so that Ctrl-C reaches this one and cancels, as does `stop`.

    Raises:
        KeyboardInterrupt: on Ctrl-C.
    """
    highs.HandleUserInterrupt = True
    thread = threading.Thread(target=highs.run, name="lowtide-highs", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_s)
            if stop is not None and stop.is_set():
                highs.cancelSolve()
                thread.join(5.0)
    except BaseException:
        highs.cancelSolve()
        thread.join(5.0)
        raise
