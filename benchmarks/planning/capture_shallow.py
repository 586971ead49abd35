"""`python -m benchmarks.planning.capture_shallow`: captures the networks from which `benchmarks.deep_networks` makes deep ones."""

from __future__ import annotations

from benchmarks.deep_networks import FOLDER
from benchmarks.planning.capture_problems import capture
from benchmarks.problem_models import SHALLOW
from lowtide.ir.text import save_graph


def main() -> None:
    """Captures each and writes its graph."""
    FOLDER.mkdir(exist_ok=True)
    for model in SHALLOW.values():
        graph = capture(model)
        save_graph(graph, FOLDER / f"{model.name}.json.gz")
        print(graph.name, len(graph.program), "operators", flush=True)


if __name__ == "__main__":
    main()
