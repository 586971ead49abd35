"""Says once when a budget is so small that most of the time goes into making things again. Torch-free.

Units: `_ns` nanoseconds of the cost model.
"""

from __future__ import annotations

import warnings

from lowtide.errors import BudgetWarning

_TIMES = 10


class Thrashing:
    """Follows the steps of one run."""

    def __init__(self) -> None:
        self._longest_ns = 0
        self._before_ns = 0
        self._warned = False

    def reran(self, rerun_ns: int, step_ns: int) -> None:
        """Something was made again.

        Arguments:
            rerun_ns: cost of all reruns so far.
            step_ns: cost of the first runs of this step so far.
        """
        most_ns = _TIMES * max(step_ns, self._longest_ns)
        if self._warned or most_ns == 0 or rerun_ns - self._before_ns <= most_ns:
            return
        self._warned = True
        warn_of_thrashing()

    def step_ended(self, rerun_ns: int, step_ns: int) -> None:
        """A step has ended, with these costs of all reruns, and of its own first runs."""
        self._longest_ns = max(self._longest_ns, step_ns)
        self._before_ns = rerun_ns


def warn_of_thrashing() -> None:
    """Says it; whoever calls does so once."""
    warnings.warn(
        f"lowtide.eager makes things again for more than {_TIMES} times the cost of the step itself: the budget is "
        "too small for this program. Raise it, or use lowtide.fit where the model can be captured: it plans ahead.",
        BudgetWarning,
        stacklevel=2,
    )
