"""`python -m benchmarks.offload.pool [--only PART ...] [--keys TEXT ...] [--quick] [--limit S] [--resume]`

One pool over the device's memory and the host's: how low steps come, how deep and how wide networks can be, and what
choosing together brings, planned, checked and simulated, and then carried out. Rows that a run leaves out stay as an
earlier one measured them. It fails if a row is missing; the files are written after each key.
"""

from __future__ import annotations

import sys

from benchmarks.offload.depth import DEPTH_PART
from benchmarks.offload.floor import FLOOR_PART
from benchmarks.offload.joint import JOINT_PART
from benchmarks.offload.links import LINK_PART
from benchmarks.offload.sizes import SIZE_PART
from benchmarks.offload.whole_steps import STEPS_PART
from benchmarks.offload.width import WIDTH_PART
from benchmarks.parts import PartsRun

RESULTS = "pool"
RUN = PartsRun(
    RESULTS,
    "One pool over every memory",
    __doc__ or "",
    (FLOOR_PART, DEPTH_PART, WIDTH_PART, JOINT_PART, STEPS_PART, SIZE_PART, LINK_PART),
    why_absent="Planning these takes longer than the machine could be had: `--resume` measures what is missing.",
)

if __name__ == "__main__":
    sys.exit(RUN.main())
