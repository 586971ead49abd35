"""Options of every verb that plans: which implementations of operators it may choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from lowtide.ir.compilers import COMPILERS

Level = Annotated[
    str,
    typer.Option(
        "--numerics",
        metavar="LEVEL",
        help="How far results may be from plain PyTorch's: exact (the same bits), reassociated (summed in another "
        "order) or lossy.",
    ),
]
Compiler = Annotated[
    str,
    typer.Option(
        "--compiler",
        metavar="NAME",
        help="Whose kernels run: eager (PyTorch's operators) or inductor (what torch.compile compiles, with its bits).",
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


def named_compiler(compiler: str) -> str:
    """The compiler of a name.

    Raises:
        typer.BadParameter: if there is none.
    """
    if compiler not in COMPILERS:
        raise typer.BadParameter(f"--compiler: there is {' and '.join(COMPILERS)}, not {compiler!r}")
    return compiler
