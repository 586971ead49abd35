"""The program's order of what only the backward needs."""

from __future__ import annotations

import torch
from torch import fx

from lowtide.capture.joint import joint_from
from lowtide.capture.order import program_order

LONG = 3_000


def test_a_long_chain_that_only_the_backward_needs_moves_there_in_order() -> None:
    graph = fx.Graph()
    x, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    result = graph.call_function(torch.ops.aten.sin.default, (x,))
    chain = [x]
    for _ in range(LONG):
        chain.append(graph.call_function(torch.ops.aten.cos.default, (chain[-1],)))
    gradient = graph.call_function(torch.ops.aten.mul.Tensor, (tangent, chain[-1]))
    graph.output((result, gradient))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(1)
    joint = joint_from(fx.GraphModule(torch.nn.Module(), graph), 1, (), {})
    names = [(n.name, segment) for n, segment in program_order(joint, joint.late())]
    assert names == [(result.name, 0), *((n.name, 1) for n in chain[1:]), (gradient.name, 1)]
