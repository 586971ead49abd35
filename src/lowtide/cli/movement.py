"""The options that say what may be moved to the host, and how fast."""

from __future__ import annotations

from typing import Annotated

import typer

HostBudget = Annotated[
    str | None, typer.Option(help='Host memory in which values may wait: bytes, or "64GiB". Nothing moves without it.')
]
Link = Annotated[
    str | None, typer.Option(help='How fast values move, each way: "12 GB/s". Else as measured, or of --machine.')
]
