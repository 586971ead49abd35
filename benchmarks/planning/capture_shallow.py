"""`python -m benchmarks.planning.capture_shallow`: captures the networks from which `benchmarks.deep_networks` makes deep ones."""

from __future__ import annotations

import argparse
import sys

from benchmarks.deep_networks import FOLDER
from benchmarks.planning.capture_problems import capture
from benchmarks.problem_models import SHALLOW
from lowtide.ir.text import save_graph


def main(arguments: list[str] | None = None) -> int:
    """Captures each and writes its graph."""
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
    FOLDER.mkdir(exist_ok=True)
    for model in SHALLOW.values():
        graph = capture(model)
        save_graph(graph, FOLDER / f"{model.name}.json.gz")
        print(graph.name, len(graph.program), "operators", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
