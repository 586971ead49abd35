"""A captured network with a layer repeated is the deeper network as it would have been captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lowtide.frontends.captured_graph import captured_graph
from lowtide.ir.block import block_named
from lowtide.ir.block_search import find_blocks
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Effect, Graph
from lowtide.ir.likeness import renumbered
from lowtide.ir.repetition import repeat
from tests import networks


def residual(layers: int) -> Graph:
    batch = {"x": torch.zeros(2, 3, 8, 8), "y": torch.zeros(2, dtype=torch.int64)}
    return captured_graph(networks.ResidualNet(layers).train(), kwargs=batch, machine="a100")


def gpt2(layers: int) -> Graph:
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    model = networks.gpt2(layers).train()
    return captured_graph(model, kwargs={"input_ids": tokens, "labels": tokens}, machine="a100")


@pytest.mark.parametrize(("capture", "name"), [(residual, "layers"), (gpt2, "transformer.h")])
def test_repeating_equals_capturing(capture: Callable[[int], Graph], name: str) -> None:
    shallow, wanted = capture(3), capture(7)
    block = block_named(shallow, find_blocks(shallow), name)
    assert block.times == 3
    deep = repeat(shallow, block, 7)
    check_graph(deep)
    assert renumbered(deep) == renumbered(wanted)
    assert {v.name for v in deep.values if v.persistent} == {v.name for v in wanted.values if v.persistent}
    assert [r.origin.module for r in deep.recipes] == [r.origin.module for r in wanted.recipes]
    random = [r.state for r in deep.recipes if r.effect is Effect.RANDOM]
    assert len(set(random)) == len(random)
