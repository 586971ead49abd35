"""`python -m benchmarks.implementations.capture_problems [--only NAME ...]`: the graphs of the tables of implementations.

Captured without memory, each in a process of its own; only lines of source are left out of the files.
"""

from __future__ import annotations

import argparse
import sys

import msgspec
import torch

from benchmarks.implementations.monet_networks import NETWORKS
from benchmarks.implementations.problems import MACHINES, MONET, NAMES, path_of
from benchmarks.problem_models import PROBLEMS, LossAlone
from benchmarks.runner import answer_of
from lowtide.api.captured_graph import captured_graph
from lowtide.ir.graph import Graph, Origin
from lowtide.ir.text import save_graph
from lowtide.ops.base import KINDS


def capture(name: str) -> Graph:
    """The graph of one training step, forward, loss and backward, with the seconds of the roofline."""
    torch.manual_seed(0)
    with torch.device("meta"):
        if name in MONET:
            network = NETWORKS[name]
            module, args, kwargs = network.build(), (network.images(network.batch),), {}
            size = f"{network.batch} images of {network.height} x {network.width}"
        else:
            model = PROBLEMS[name]
            module, args, kwargs, size = LossAlone(model.make()).train(), (), model.batch(), model.size
    graph = captured_graph(module, args, kwargs, machine=MACHINES[name], without=KINDS)
    recipes = tuple(msgspec.structs.replace(r, origin=Origin(r.origin.module)) for r in graph.recipes)
    return msgspec.structs.replace(graph, recipes=recipes, name=f"{name}, {size}, {MACHINES[name]} by roofline")


def write_graph(name: str) -> str:
    """Captures and writes one, in a process of its own; says what it is."""
    path_of(name).parent.mkdir(exist_ok=True)
    graph = capture(name)
    save_graph(graph, path_of(name))
    return f"{graph.name} {len(graph.program)} operators"


def main(arguments: list[str] | None = None) -> int:
    """Captures the problems that are asked for, one process each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=list(NAMES), metavar="NAME")
    for name in parser.parse_args(arguments).only:
        print(answer_of(write_graph, name), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
