"""The problems of the planning tables: captured graphs, deep ones made of them, and execution traces. Needs no torch.

`problems/traces/README.md` says where the traces come from.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from benchmarks import deep_networks
from lowtide.ir.execution_trace import load_trace
from lowtide.ir.graph import Graph
from lowtide.ir.text import load_graph

FOLDER = Path(__file__).parent / "problems"
TRACES = FOLDER / "traces"
_TRACE = "trace_"


def names() -> list[str]:
    """Every problem that there is here: captured graphs, then deep ones, then traces."""
    return [*captured(), *deep_networks.names(), *traces()]


def captured() -> list[str]:
    """Graphs of real models at real sizes."""
    return sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))


def traces() -> list[str]:
    """`trace_NAME` for every execution trace."""
    return sorted(_TRACE + path.name.removesuffix(".jsonl.gz") for path in TRACES.glob("*.jsonl.gz"))


@cache
def load(name: str) -> Graph:
    """A problem's graph, with seconds: by roofline for the machine that its name says; of a trace, as recorded.

    Raises:
        KeyError: if there is no such problem.
    """
    if name in deep_networks.names():
        return deep_networks.deep(name)
    if name in traces():
        return load_trace(TRACES / f"{name.removeprefix(_TRACE)}.jsonl.gz")
    if name in captured():
        return load_graph(FOLDER / f"{name}.json.gz")
    raise KeyError(f"no problem {name!r}; there are {', '.join(names())}")
