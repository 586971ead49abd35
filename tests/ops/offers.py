"""What one family offers in a small module, and whether it gives the same results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lowtide.api.captured_graph import captured_graph
from lowtide.ir.graph import Graph, Group, Option
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import KINDS, AbstractFamily
from lowtide.ops.builder import GraphBuilder
from lowtide.profile.recording import isolation
from lowtide.profile.rehearsal import Rehearsal


def offered(
    model: torch.nn.Module, args: Sequence[Any], *families: AbstractFamily, numerics: Numerics = Numerics.LOSSY
) -> Graph:
    """A module's step with what some families add, and nothing else."""
    builder = GraphBuilder(captured_graph(model, args, machine="a100", without=KINDS))
    for family in families:
        family.add(builder, numerics)
    return builder.finish()


def difference(graph: Graph, group: Group, option: Option) -> str:
    """How an option's results differ from the program's on made-up inputs; empty where no bit does."""
    with isolation():
        return Rehearsal(graph, group.options[0].recipes, option.recipes).difference(())


def read_by(graph: Graph, recipes: Sequence[int]) -> set[int]:
    """Ids of all values that some recipes read."""
    return {v for r in recipes for v in graph.recipes[r].read_values}
