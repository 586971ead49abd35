"""`python -m benchmarks.offload.capture_problems [--only NAME ...]`: the networks of the tables of one pool.

Captured without memory, each in a process of its own; only lines of source are left out of the files. Another batch is
captured beside it, and has to be what `benchmarks.offload.networks` makes of the file.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import msgspec
import torch

from benchmarks.offload.networks import CAPTURED, FOLDER, NETWORKS, network
from benchmarks.problem_models import WithLoss
from benchmarks.runner import answer_of
from lowtide.api.captured_graph import captured_graph
from lowtide.ir.graph import Graph, Origin
from lowtide.ir.text import save_graph
from lowtide.ops.base import KINDS

_OTHER = 11
_MACHINE = "a100"


def make(name: str) -> torch.nn.Module:
    """A network with its loss inside."""
    if name == "inception_v4":
        import timm

        return WithLoss(timm.create_model(name))
    from torchvision import models

    return WithLoss(models.get_model(name, weights=None))


def capture(name: str, batch: int) -> Graph:
    """The graph of one training step, forward, loss and backward."""
    torch.manual_seed(0)
    size = 299 if name.startswith("inception") else 224
    with torch.device("meta"):
        module = make(name).train()
        given = {"x": torch.empty(batch, 3, size, size), "y": torch.empty(batch, dtype=torch.int64)}
    graph = captured_graph(module, kwargs=given, machine=_MACHINE, without=KINDS)
    recipes = tuple(msgspec.structs.replace(r, origin=Origin(r.origin.module)) for r in graph.recipes)
    return msgspec.structs.replace(graph, recipes=recipes, name=f"{name}, {batch} images of {size} x {size}")


def facts(graph: Graph) -> list[Any]:
    """What has to agree with another capture."""
    values = [(v.size_B, v.role, v.geometry) for v in graph.values]
    return [*values, *((r.op, r.outputs, r.read_values, r.time_s, r.trace) for r in graph.recipes)]


def write_graph(name: str) -> None:
    """Captures and writes one, in a process of its own.

    Raises:
        ValueError: if the network at another batch is not what the file makes of it.
    """
    FOLDER.mkdir(exist_ok=True)
    save_graph(capture(name, CAPTURED), FOLDER / f"{name}.json.gz")
    pairs = zip(facts(network(name, _OTHER, _MACHINE)), facts(capture(name, _OTHER)), strict=True)
    wrong = [a for a, b in pairs if a != b]
    if wrong:
        raise ValueError(f"{name}: {len(wrong)} values and recipes differ at batch {_OTHER}, the first is {wrong[0]}")


def main(arguments: list[str] | None = None) -> int:
    """Captures the networks that are asked for, one process each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=NETWORKS, default=list(NETWORKS), metavar="NAME")
    for name in parser.parse_args(arguments).only:
        answer_of(write_graph, name)
        print(name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
