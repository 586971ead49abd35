"""How HiGHS is run here: one thread, the same result every time, and it can be stopped."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

THREADS = 1  # HiGHS needs the same number in every instance of a process
_POLL_s = 0.05


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
