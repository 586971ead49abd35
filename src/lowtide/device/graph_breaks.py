"""Places where Dynamo ends a graph before the model ends: counted, refused, recognised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def graph_breaks() -> dict[str, int]:
    """How often Dynamo broke a graph so far in this process, by reason."""
    from torch._dynamo.utils import counters

    return dict(counters["graph_break"])


@contextlib.contextmanager
def refused_graph_breaks() -> Iterator[None]:
    """Makes Dynamo raise where it would break a graph, before anything has run."""
    with torch._dynamo.error_on_graph_break(True):
        yield


def forget_graph_breaks(before: dict[str, int]) -> None:
    """Lets Dynamo's count of graph breaks be what it was."""
    from torch._dynamo.utils import counters

    counters["graph_break"].clear()
    counters["graph_break"].update(before)


def ends_at_a_break(gm: torch.fx.GraphModule) -> bool:
    """Whether Dynamo ended this graph because it could not go on, so that more graphs of the model will follow."""
    return bool(getattr(getattr(gm, "compile_subgraph_reason", None), "graph_break", False))
