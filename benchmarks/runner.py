"""A measurement in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def answer_of(module: str, *arguments: object, quiet: bool = True) -> Any:
    """Runs `benchmarks.<module>` and reads the last line that it prints, as JSON.

    Arguments:
        quiet: whether what it says on stderr is shown only if it fails.

    Raises:
        RuntimeError: if it failed.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    stderr = subprocess.PIPE if quiet else None
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}\n{(done.stderr or '')[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])
