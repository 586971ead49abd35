"""Captured graphs with every implementation that may be used: of the level asked for, exact where it says so."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

import torch

from lowtide.capture.captured import Specialised
from lowtide.ir.graph import Graph
from lowtide.ir.numerics import Numerics
from lowtide.pipeline import enlarged
from lowtide.planners.implementations.menu import restricted
from lowtide.profile.exactness import Exactness
from lowtide.record import PlanOptions

_LOG = logging.getLogger("lowtide")


@dataclasses.dataclass(eq=False)
class Menu:
    """The implementations of one session's graphs.

    Arguments:
        exactness: what is known of them.
    """

    exactness: Exactness

    def served(
        self, specialised: Specialised, options: PlanOptions, contents: Mapping[int, torch.Tensor]
    ) -> Specialised:
        """A captured graph with more implementations; what was captured keeps its ids.

        Arguments:
            options: which level, what to leave out, and for which machine.
            contents: parameters and buffers, by value.
        """
        graph = enlarged(specialised.graph, specialised.held, contents, options, self.exactness)
        return dataclasses.replace(specialised, graph=_within_slots(specialised, graph))


def _within_slots(specialised: Specialised, graph: Graph) -> Graph:
    """Leaves out implementations that carry more values to the backward than there are slots for.

    The slots were counted at the sizes of the first call; other sizes may have more.
    """
    spares = specialised.captured.slots.spares
    outside_arena = specialised.outside_arena(graph)[spares:]
    if not outside_arena:
        return graph
    program = set(graph.program)
    lost = [
        r.id
        for r in graph.recipes
        if r.id not in program and not set(outside_arena).isdisjoint((*r.read_values, *r.outputs))
    ]
    _LOG.info("%d implementations are left out: there are slots for %d of their values", len(lost), spares)
    return restricted(graph, Numerics.LOSSY, recipes=lost)
