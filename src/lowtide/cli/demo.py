"""`lowtide demo`: train a GPT-2 plainly and under a budget, and compare every bit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowtide.cli.failure import BROKEN, told


def demo(
    steps: Annotated[int, typer.Option(min=2, help="Optimizer steps on each side.")] = 24,
    budget: Annotated[str, typer.Option(help='Bytes, "512MiB", or a share such as "50% of plain".')] = "50% of plain",
    out: Annotated[Path, typer.Option(help="Folder for plan.json and memory.svg.")] = Path(),
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout.")] = 0,
) -> None:
    """Train a GPT-2 on Python's own sources, plainly and inside a budget, and show that nothing changed."""
    with told():
        from lowtide.demo.demo import run_demo

        kept = run_demo(steps=steps, budget=budget, out=out, seed=seed)
    if not kept:
        raise typer.Exit(BROKEN)
