"""Options of every verb that plans: which implementations of operators it may choose from."""

from __future__ import annotations

from typing import Annotated

import typer

Level = Annotated[
    str,
    typer.Option(
        "--numerics",
        metavar="LEVEL",
        help="How far results may be from plain PyTorch's: exact (the same bits), reassociated (summed in another "
        "order) or lossy.",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="KIND",
        help="Leave out implementations: in-place, 'saved values', algorithms, loss, fusion, or a family. Repeatable.",
    ),
]
