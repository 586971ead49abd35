"""HiGHS as it is run here, whatever its release: programs that read what a planner's process writes read that alone."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def test_nothing_is_written_to_the_standard_output() -> None:
    program = textwrap.dedent(
        """
        from lowtide.planners.bounds.milp import Effort, Milp, SilentHighs, solve

        SilentHighs()
        milp = Milp()
        columns = [milp.column(1.0 + 1e-9 * i) for i in range(5)]
        milp.row([(c, 2.0 + i) for i, c in enumerate(columns)], least=7.5)
        assert solve(milp.model(), Effort()).whole
        """
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
