"""The problems of the planning tables: graphs in `benchmarks/problems`, by name. Needs no torch."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from lowtide.ir.graph import Graph
from lowtide.ir.text import load_graph

FOLDER = Path(__file__).parent / "problems"


def names() -> list[str]:
    """Every problem there is."""
    return sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))


@cache
def load(name: str) -> Graph:
    """A problem's graph, profiled by roofline for the machine that its name says."""
    return load_graph(FOLDER / f"{name}.json.gz")
