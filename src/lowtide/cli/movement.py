"""The options that say what may be offloaded to the host, and how fast."""

from __future__ import annotations

from typing import Annotated

import typer

HostBudget = Annotated[
    str | None, typer.Option(help='Host memory to offload values to: bytes, or "64GiB". Else none is offloaded.')
]
Link = Annotated[
    str | None, typer.Option(help='Rate of copies in each direction: "12 GB/s". Else as measured, or of --machine.')
]
