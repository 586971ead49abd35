"""Graphs from files: lowtide's own and execution traces, told apart by their names."""

from __future__ import annotations

import os
from pathlib import Path

from lowtide.errors import PlanFileError
from lowtide.ir.execution_trace import load_trace
from lowtide.ir.graph import Graph
from lowtide.ir.text import load_graph

_GRAPHS = (".json", ".json.gz")
_TRACES = (".jsonl", ".jsonl.gz")
ENDINGS = (*_GRAPHS, *_TRACES)


def is_graph_file(name: str | os.PathLike[str]) -> bool:
    """Whether a name is one of a graph file or of a trace; there need not be such a file."""
    return os.fspath(name).endswith(ENDINGS)


def read_graph(path: str | os.PathLike[str]) -> Graph:
    """Reads a graph file (`.json`, `.json.gz`) or an execution trace (`.jsonl`, `.jsonl.gz`).

    Raises:
        PlanFileError: if there is no such file, or it is damaged, foreign or inconsistent.
    """
    name = Path(path).name
    if name.endswith(_TRACES):
        return load_trace(path)
    if name.endswith(_GRAPHS):
        return load_graph(path)
    raise PlanFileError(f"{os.fspath(path)} is no graph: its name ends in none of {', '.join(ENDINGS)}")
