"""`python -m benchmarks.implementations.implementations [--only PART ...] [--keys TEXT ...] [--quick] [--limit S] [--resume]`

What more than one implementation per operator brings: overheads per level beside MONeT's and Checkmate's figures, the
ablation, joint choice against one after the other, seconds of planning, plans executed, large vocabularies, loss curves.
Rows that a run leaves out stay as an earlier one measured them. It fails if a row is missing, or if bits differ at level
exact; the files are written after each key.
"""

from __future__ import annotations

import sys

from benchmarks.implementations.ablation import ABLATION_PART
from benchmarks.implementations.curves import CURVE_PART
from benchmarks.implementations.execution import EXECUTION_PART, broken
from benchmarks.implementations.levels import LEVEL_PART, TEN_PART
from benchmarks.implementations.order import ORDER_PART
from benchmarks.implementations.solving import SOLVING_PART
from benchmarks.implementations.vocabulary import VOCABULARY_PART
from benchmarks.parts import PartsRun

RESULTS = "implementations"
RUN = PartsRun(
    RESULTS,
    "Implementations",
    __doc__ or "",
    (
        LEVEL_PART,
        TEN_PART,
        ABLATION_PART,
        ORDER_PART,
        SOLVING_PART,
        EXECUTION_PART,
        VOCABULARY_PART,
        CURVE_PART,
    ),
    lambda found: [f"BROKEN: {row}" for row in broken(found.get(EXECUTION_PART.name, {}))],
    "Its steps take longer than the machine could be had.",
)

if __name__ == "__main__":
    sys.exit(RUN.main())
