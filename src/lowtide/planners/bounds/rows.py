"""A linear programme under construction: whole columns between 0 and 1, measures, rows with a least value.

Memory is counted in MiB and time in ms: raw bytes and picoseconds break the solver's tolerances.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import highspy
import numpy as np

MIB = 2.0**20
PS_PER_MS = 1e9
_TOLERANCE = 1e-6  # HiGHS's feasibility tolerance, absolute, per row

Entries = Sequence[tuple[int, float]]


class Rows:
    """Minimise the columns' costs subject to the rows."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._most: list[float] = []  # infinite where a column is a measure
        self._starts, self._columns, self._numbers = [0], list[int](), list[float]()
        self._least: list[float] = []

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return len(self._costs)

    def column(self, cost_ps: int = 0) -> int:
        """Adds a column; returns its index."""
        self._costs.append(cost_ps / PS_PER_MS)
        self._most.append(1.0)
        return len(self._costs) - 1

    def measure(self, cost: float = 1.0) -> int:
        """Adds a column of any size from 0 on, in ms, each of which costs `cost` ms; returns its index."""
        self._costs.append(cost)
        self._most.append(highspy.kHighsInf)
        return len(self._costs) - 1

    def row(self, entries: Iterable[tuple[int, float]], least: float = 0.0) -> int:
        """Adds a row whose sum has to be `least` or more; returns its index. A column may stand in it once."""
        for column, number in entries:
            self._columns.append(column)
            self._numbers.append(number)
        self._starts.append(len(self._columns))
        self._least.append(least)
        return len(self._least) - 1

    def model(self) -> highspy.HighsLp:
        """What HiGHS takes; every column is whole but for the measures."""
        count = self.columns
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = count, len(self._least)
        model.col_cost_ = np.array(self._costs)
        model.col_lower_, model.col_upper_ = np.zeros(count), np.array(self._most)
        model.row_lower_ = np.array(self._least)
        model.row_upper_ = np.full(len(self._least), highspy.kHighsInf)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(self._starts, dtype=np.int32)
        model.a_matrix_.index_ = np.array(self._columns, dtype=np.int32)
        model.a_matrix_.value_ = np.array(self._numbers)
        kinds = (highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous)
        model.integrality_ = [kinds[most != 1.0] for most in self._most]
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
