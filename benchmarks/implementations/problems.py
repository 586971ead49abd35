"""The problems of the tables of implementations: graphs with everything that an operator's name, sizes and arguments say.

`problems/monet` has MONeT's networks at its batches, `problems/transformers` three of `benchmarks.problem_models`. The
files of `benchmarks.problem_set` leave out what tells which implementations an operator has. Needs no torch.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from lowtide.ir.graph import Graph
from lowtide.ir.text import load_graph

_PROBLEMS = Path(__file__).parents[1] / "problems"
MONET = ("resnet50", "googlenet", "unet", "vgg16", "mobilenet_v2")
TRANSFORMERS = ("gpt2", "bert_large", "vit_large")
NAMES = (*MONET, *TRANSFORMERS)
MACHINES = {**dict.fromkeys(MONET, "p100"), **dict.fromkeys(TRANSFORMERS, "a100")}
"""Whose roofline gives the seconds: the card of MONeT's tables, and that of `benchmarks.problem_set`."""


def path_of(name: str) -> Path:
    """Where a problem's file is."""
    return _PROBLEMS / ("monet" if name in MONET else "transformers") / f"{name}.json.gz"


@cache
def load(name: str) -> Graph:
    """A problem's graph as it was captured, with the seconds of its machine.

    Raises:
        PlanFileError: if its file is missing or damaged.
    """
    return load_graph(path_of(name))
