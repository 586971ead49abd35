"""The `lowtide` command: one verb per file, assembled here. Importing it imports neither torch nor a model."""

from __future__ import annotations

import typer

from lowtide.cli.cache import cache
from lowtide.cli.demo import demo
from lowtide.cli.explain import explain
from lowtide.cli.fits import fits
from lowtide.cli.frontier import frontier
from lowtide.cli.place import place
from lowtide.cli.plan import plan
from lowtide.cli.replay import replay
from lowtide.cli.verify import verify

app = typer.Typer(
    name="lowtide",
    help="Train the same PyTorch network, bit for bit, inside the bytes you name.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(name="demo")(demo)
app.command(name="plan")(plan)
app.command(name="verify")(verify)
app.command(name="fits")(fits)
app.command(name="frontier")(frontier)
app.command(name="explain")(explain)
app.command(name="place")(place)
app.command(name="replay")(replay)
app.add_typer(cache, name="cache")
