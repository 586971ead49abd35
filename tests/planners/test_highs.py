"""HiGHS as it is run here, whatever its release: programs that read what a planner's process writes read that alone."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def test_nothing_is_written_to_the_standard_output() -> None:
    program = textwrap.dedent(
        """
        from lowtide.planners.bounds.highs import Effort, SilentHighs, solve
        from lowtide.planners.bounds.rows import Rows

        SilentHighs()
        rows = Rows()
        columns = [rows.column(1_000_000_000 + i) for i in range(5)]
        rows.row([(c, 2.0 + i) for i, c in enumerate(columns)], least=7.5)
        assert solve(rows.model(), Effort()).whole
        """
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
