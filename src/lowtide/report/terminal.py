"""What prints to a terminal, or as plain text: colours are ours, and nothing in a name is taken for a command."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from lowtide.printable import printable


class Terminal(Console):
    """A rich console through which only printable text leaves."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What rich renders, with text made printable; rich's own control codes are kept apart from text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
