"""A captured network with a layer repeated is the deeper network as it would have been captured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from lowtide.api.captured_graph import captured_graph
from lowtide.api.depth import deepened
from lowtide.ir.block import block_named
from lowtide.ir.block_search import find_blocks
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Effect, Graph
from lowtide.ir.likeness import renumbered
from lowtide.ir.repetition import repeat
from lowtide.ops.base import KINDS
from tests import networks


def residual(layers: int) -> Graph:
    batch = {"x": torch.zeros(2, 3, 8, 8), "y": torch.zeros(2, dtype=torch.int64)}
    return captured_graph(networks.ResidualNet(layers).train(), kwargs=batch, machine="a100", without=KINDS)


def gpt2(layers: int) -> Graph:
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    model = networks.gpt2(layers).train()
    return captured_graph(model, kwargs={"input_ids": tokens, "labels": tokens}, machine="a100", without=KINDS)


@pytest.mark.parametrize(
    ("capture", "name"), [(residual, "layers"), pytest.param(gpt2, "transformer.h", marks=pytest.mark.breadth)]
)
def test_repeating_equals_capturing(capture: Callable[[int], Graph], name: str) -> None:
    shallow, wanted = capture(3), capture(5)
    block = block_named(shallow, find_blocks(shallow), name)
    assert block.times == 3
    deep = repeat(shallow, block, 5)
    check_graph(deep)
    assert renumbered(deep) == renumbered(wanted)
    assert {v.name for v in deep.values if v.persistent} == {v.name for v in wanted.values if v.persistent}
    assert [r.origin.module for r in deep.recipes] == [r.origin.module for r in wanted.recipes]
    random = [r.state for r in deep.recipes if r.effect is Effect.RANDOM]
    assert len(set(random)) == len(random)


def test_implementations_of_the_deeper_network_are_those_of_the_shallow_one() -> None:
    def capture(layers: int) -> Graph:
        batch = {"x": torch.zeros(2, 3, 8, 8), "y": torch.zeros(2, dtype=torch.int64)}
        model = networks.ResidualNet(layers).train()
        return captured_graph(model, kwargs=batch, machine="a100", numerics="reassociated")

    shallow, wanted = capture(3), capture(5)
    deep = deepened(shallow, {"layers": 5})
    check_graph(deep)
    assert deepened(shallow, {}) is shallow
    assert menu(deep) == menu(wanted)
    assert Counter((r.op, r.time_s, r.trace) for r in deep.recipes) == Counter(
        (r.op, r.time_s, r.trace) for r in wanted.recipes
    )


def menu(graph: Graph) -> Counter[tuple[str, str, str]]:
    """How often every option is there, by kind, name and level."""
    return Counter((g.kind, o.name, o.numerics.value) for g in graph.groups for o in g.options)
