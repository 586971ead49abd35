"""How a verb ends when it cannot go on: the reason and the remedy on stderr, and an exit code.

0: done. 1: a promise was broken, or the user's own code raised. 2: what was asked cannot be done. 130: Ctrl-C.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.text import Text

from lowtide.errors import InfeasibleBudget, LowtideError
from lowtide.report.answer import refusal
from lowtide.report.explain import labelled
from lowtide.report.terminal import Terminal

BROKEN, REFUSED, INTERRUPTED = 1, 2, 130


class UserCodeError(Exception):
    """The user's own function raised; `__cause__` is what it raised, `place` where it was called for."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


@contextmanager
def told() -> Iterator[None]:
    """Turns what can go wrong on purpose into a message and an exit code; anything else is a bug and keeps its trace.

    Raises:
        typer.Exit: with one of the codes above.
    """
    try:
        yield
    except UserCodeError as error:
        _say(f"{error.place} raised:\n{_trace(error.__cause__)}")
        raise typer.Exit(BROKEN) from error
    except InfeasibleBudget as error:
        console = Terminal(stderr=True, highlight=False)
        console.print(labelled(refusal(error), console.width))
        console.print()
        console.print(Text(f"{type(error).__name__}: {error}", style="dim"))
        raise typer.Exit(REFUSED) from error
    except LowtideError as error:
        _say(f"{type(error).__name__}: {error}")
        raise typer.Exit(REFUSED) from error
    except OSError as error:
        if error.filename is None:
            raise
        _say(f"{error.filename}: {error.strerror or error}")
        raise typer.Exit(REFUSED) from error
    except KeyboardInterrupt as error:
        _say("interrupted; nothing was written")
        raise typer.Exit(INTERRUPTED) from error


def _say(message: str) -> None:
    Terminal(stderr=True, highlight=False).print(Text(message, style="red"), soft_wrap=True)


def _trace(error: BaseException | None) -> str:
    """The trace of the user's exception without the frames of this package that stand before it."""
    if error is None:
        return ""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(
        ("lowtide.", "importlib.", "runpy")
    ):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()
