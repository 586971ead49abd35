"""The deep networks of the planning tables: as deep as their names say, and consistent."""

from __future__ import annotations

import pytest
from benchmarks.deep_networks import deep, names

from lowtide.ir.check_graph import check_graph

_DOWNSAMPLING = 4  # convolutions besides the blocks' own, which a ResNet's depth does not count


@pytest.mark.parametrize(("name", "depth"), [("superneurons_254", 254), ("superneurons_140", 140)])
def test_the_depth_is_that_of_the_name(name: str, depth: int) -> None:
    graph = deep(name)
    check_graph(graph)
    convolutions = [r for r in graph.recipes if r.op == "aten.convolution.default"]
    assert len(convolutions) - _DOWNSAMPLING + 1 == depth
    assert len({r.outputs for r in convolutions}) == len(convolutions)
    weights = [v for v in graph.values if v.persistent]
    assert len({v.name for v in weights}) == len(weights)


def test_networks_come_in_the_order_of_their_size() -> None:
    assert names()[0] == "resnet_1000_operators"
    assert 950 < len(deep(names()[0]).program) < 1050


@pytest.mark.parametrize("name", ["resnet", "superneurons_141", "superneurons_50", "superneurons_"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(KeyError, match="no deep network"):
        deep(name)
