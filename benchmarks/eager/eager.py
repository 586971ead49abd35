"""`python -m benchmarks.eager.eager [--only PART ...] [--keys TEXT ...] [--quick] [--resume]`

Training without a graph inside a budget. Recorded steps, replayed: DTR's simulator reproduced, policies with addresses, what each
technique brings. Loops, executed: the same bits, policies side by side in one arena, the smallest budgets, against plans made
ahead, and three hundred steps. Rows that a run leaves out stay as an earlier one measured them. It fails if a row is
missing, if a bit differs, or if a byte is over a budget; the files are written after each key.
"""

from __future__ import annotations

import sys

from benchmarks.eager import executed as eager_executed
from benchmarks.eager import soak as eager_soak
from benchmarks.eager.executed import EXECUTED_PART
from benchmarks.eager.published import PUBLISHED_PART
from benchmarks.eager.smallest import SMALLEST_PART
from benchmarks.eager.soak import SOAK_PART
from benchmarks.eager.static import STATIC_PART
from benchmarks.eager.traces import ABLATION_PART, TRACES_PART
from benchmarks.parts import PartsRun, Rows

RESULTS = "eager"


def broken(found: Rows) -> list[str]:
    """Promises that rows do not keep."""
    loops = [row for rows in found.get("executed", {}).values() for row in rows]
    soaks = [row for rows in found.get("soak", {}).values() for row in rows]
    return [*eager_executed.broken(loops), *eager_soak.broken(soaks)]


RUN = PartsRun(
    RESULTS,
    "Training without a graph, inside a budget",
    __doc__ or "",
    (
        PUBLISHED_PART,
        TRACES_PART,
        ABLATION_PART,
        EXECUTED_PART,
        SMALLEST_PART,
        STATIC_PART,
        SOAK_PART,
    ),
    broken,
)

if __name__ == "__main__":
    sys.exit(RUN.main())
