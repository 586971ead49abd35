"""`lowtide explain plan.json`: what a saved plan does, and why. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowtide.cli.failure import told
from lowtide.report.terminal import Terminal

VERBOSE = "Also where the bytes go, why each value has its fate, and what is proved."


def explain(
    plan: Annotated[Path, typer.Argument(help="A plan file that lowtide saved.")],
    top: Annotated[int, typer.Option(min=0, help="Most values to show, largest first.")] = 20,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help=VERBOSE)] = False,
    html: Annotated[Path | None, typer.Option(help="Write a report that opens in a browser.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write a picture of memory over one step.")] = None,
) -> None:
    """Say for the values that matter: size, fate, why, cost, and the line of your source."""
    with told():
        from lowtide.ir.text import load_plan
        from lowtide.report.explain import explain as explain_record
        from lowtide.report.explain import renderable

        record = load_plan(plan)
        console = Terminal()
        console.print(renderable(explain_record(record, top), console.width, verbose))
        if html is not None:
            from lowtide.report.html import write_html

            write_html(record, html)
            console.print(f"wrote {html}", markup=False, highlight=False, soft_wrap=True)
        if svg is not None:
            from lowtide.report.memory_picture import write_memory

            write_memory(record, svg)
            console.print(f"wrote {svg}", markup=False, highlight=False, soft_wrap=True)
