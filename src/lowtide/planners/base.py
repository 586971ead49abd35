"""What every planner is: a frozen value with a name that can refuse a problem or solve it.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from lowtide.ir.plan import Outcome, Problem


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a solve.

    Arguments:
        stage: what runs now, `"greedy"`.
        elapsed_s: since the solve began.
        time_s: of the best plan so far; None before there is one.
        bound_s: best proved lower bound so far.
        work: proposals tried so far.
        plain_s: of the program without recomputation; over it stand the overheads of plan and bound.
    """

    stage: str
    elapsed_s: float
    time_s: float | None
    bound_s: float
    work: int
    plain_s: float = 0.0


Watch = Callable[[Progress], None]


class AbstractPlanner(abc.ABC):
    """Turns a problem into an outcome. To tweak a planner, wrap it."""

    name: ClassVar[str]

    @abc.abstractmethod
    def refuses(self, problem: Problem) -> str | None:
        """Says why this planner cannot treat the problem, or None if it can. O(graph)."""

    @abc.abstractmethod
    def solve(self, problem: Problem, watch: Watch | None = None) -> Outcome:
        """Plans.

        Arguments:
            problem: one that is not refused.
            watch: called now and then with the progress, from the calling thread.

        Returns: a schedule with its status and proofs; the same one for the same problem, seed and work.

        Raises:
            PlanError: if the problem is refused; the text is the reason.
            KeyboardInterrupt: on Ctrl-C before any plan was found; later the best plan is returned as INTERRUPTED.
        """
