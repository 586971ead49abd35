"""Operators in place: the bits of the plain one, in the bytes of what they overwrite, and only where that can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lowtide.device.calls import resolve
from lowtide.device.observer import observe
from lowtide.ir.call import Read, Ref, View
from lowtide.ir.check_graph import check_graph
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, MiniTrace, Recipe, Role, Segment, Value
from lowtide.ir.in_place import plain_candidates
from lowtide.ir.numerics import Numerics
from lowtide.ops.builder import GraphBuilder
from lowtide.ops.in_place import CANDIDATES, InPlace
from lowtide.profile.in_place import settled

SHAPE, STRIDE = (4, 8, 16), (128, 16, 1)
_DICE = torch.Generator().manual_seed(0)
_MORE: dict[str, tuple[Any, ...]] = {
    "clamp": (-0.5, 0.5),
    "clamp_min": (0.0,),
    "clamp_max": (0.5,),
    "masked_fill": (torch.ones(3, 5, 17, 9).tril() > 0, 0.5),
    "pow": (3,),
    "elu_backward": (1.0, 1, 1, False, "x"),
    "hardtanh_backward": ("x", -1, 1),
    "leaky_relu_backward": ("x", 0.1, False),
    "softplus_backward": ("x", 1, 20),
    "threshold_backward": ("x", 0),
    "addcmul": ("x", "x"),
    "addcdiv": ("x", "x"),
    "_softmax": (-1, False),
    "_log_softmax": (1, False),
}


def _tensor(dtype: torch.dtype, layout: torch.memory_format) -> torch.Tensor:
    return torch.randn(3, 5, 17, 9, generator=_DICE).to(dtype).contiguous(memory_format=layout)


def _arguments(op: str, dtype: torch.dtype, layout: torch.memory_format) -> list[Any]:
    name, overload = op.split(".")[1:]
    more = _MORE.get(name, ("x",) if name.endswith("_backward") or overload == "Tensor" else ())
    if name.endswith("_backward_data"):
        more = ("x", -1, dtype)
    elif overload == "Scalar" and name not in _MORE:
        more = (2.5,)
    return [_tensor(dtype, layout), *(_tensor(dtype, layout) if a == "x" else a for a in more)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels-last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("op", [op for op in CANDIDATES if op.startswith("aten.")])
def test_the_bits_are_those_of_the_plain_operator(op: str, dtype: torch.dtype, layout: torch.memory_format) -> None:
    if layout is torch.channels_last and any(candidate.rows for candidate in CANDIDATES[op]):
        pytest.skip("only added where rows lie one after the other")
    args = _arguments(op, dtype, layout)
    with torch.no_grad():
        expected = resolve(op)(*args)
        for candidate in CANDIDATES[op]:
            own = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
            over = own[candidate.over]
            with observe() as seen:
                got = resolve(candidate.op)(*own, **({} if candidate.into is None else {candidate.into: over}))
            assert got.data_ptr() == over.data_ptr()
            assert got.dtype == expected.dtype
            assert torch.equal(got.nan_to_num(), expected.nan_to_num())
            if op != "aten.masked_fill.Scalar":  # its result has another order: it is withdrawn
                assert got.stride() == expected.stride()
            assert max((e.size_B for e in seen.events), default=0) < over.untyped_storage().nbytes()


def _graph(
    op: str, reads: tuple[Read, ...], result: Geometry, args: tuple[Any, ...] | None = None, **facts: Any
) -> Graph:
    """x -> a, and then a, or a and x, to b by an operator."""
    g = Geometry("float32", SHAPE, STRIDE)
    role = facts.pop("role", Role.ACTIVATION)
    values = (
        Value(0, "x", g.extent_B, Role.INPUT, g, arrives=0),
        Value(1, "a", g.extent_B, Role.ACTIVATION, g, **facts),
        Value(2, "b", result.extent_B, role, result, leaves=None if role is Role.ACTIVATION else 0),
    )
    made = MiniTrace((g.extent_B,), (0,))
    recipes = (
        Recipe(0, "aten.cos.default", (1,), (Read(0, (), g),), args=(Ref(0),), trace=made),
        Recipe(
            1,
            op,
            (2,),
            reads,
            args=tuple(Ref(i) for i in range(len(reads))) if args is None else args,
            trace=MiniTrace((result.extent_B,), (0,)),
        ),
    )
    return Graph(values, recipes, (0, 1), (Segment("forward"),))


def _candidates(graph: Graph) -> list[str]:
    builder = GraphBuilder(graph)
    InPlace().add(builder, Numerics.EXACT)
    enlarged = builder.finish()
    check_graph(enlarged)
    return [enlarged.recipes[w].op for w in plain_candidates(enlarged)]


G = Geometry("float32", SHAPE, STRIDE)
WIDE = Geometry("float32", (8, *SHAPE), (512, *STRIDE))
FLAT = View("aten.view.default", (Ref(0),))


@pytest.mark.parametrize(
    ("graph", "candidates"),
    [
        (_graph("aten.relu.default", (Read(1, (), G),), G), ["aten.relu_.default"]),
        (_graph("aten.add.Tensor", (Read(1, (), G), Read(0, (), G)), G), ["aten.add_.Tensor"]),
        (_graph("aten.add.Tensor", (Read(0, (), G), Read(1, (), G)), G), ["aten.add.out"]),
        (_graph("aten.add.Tensor", (Read(1, (), G),), G, (Ref(0), 2)), ["aten.add_.Tensor"]),
        (_graph("aten.mul.Tensor", (Read(1, (), G), Read(1, (), G)), G), ["aten.mul_.Tensor", "aten.mul.out"]),
        (_graph("aten.relu.default", (Read(1, (FLAT,), Geometry("float32", (512,), (1,))),), G), []),
        (
            _graph(
                "aten.relu.default",
                (Read(1, (FLAT,), Geometry("float32", (512,), (1,))),),
                Geometry("float32", (512,), (1,)),
            ),
            ["aten.relu_.default"],
        ),
        (_graph("aten.relu.default", (Read(1, (), G),), Geometry("float32", SHAPE, (1, 4, 32))), []),
        (_graph("aten.mul.Tensor", (Read(1, (), G), Read(0, (), G)), Geometry("float64", SHAPE, STRIDE)), []),
        (_graph("aten.add.Tensor", (Read(1, (), WIDE), Read(0, (), WIDE)), WIDE), []),
        (_graph("aten.relu.default", (Read(0, (), G),), G), []),
        (_graph("aten.relu.default", (Read(1, (), G),), G, leaves=0), []),
        (_graph("aten.relu.default", (Read(1, (), G),), G, role=Role.OUTPUT), []),
        (_graph("aten.relu.default", (Read(1, (), G),), G, role=Role.GRADIENT), ["aten.relu_.default"]),
        (_graph("aten.sum.default", (Read(1, (), G),), G), []),
        (_graph("aten._softmax.default", (Read(1, (), G),), G, (Ref(0), -1, False)), ["aten._softmax.out"]),
    ],
    ids=[
        *("one", "first", "second", "a number", "twice", "through a view", "of the same view", "other strides"),
        *(
            "promoted",
            "broadcast",
            "the caller's",
            "handed over",
            "to the caller",
            "a gradient",
            "not elementwise",
            "by rows",
        ),
    ],
)
def test_candidates_are_added_where_the_bytes_are_the_same(graph: Graph, candidates: list[str]) -> None:
    assert _candidates(graph) == candidates


def test_a_candidate_that_turns_out_not_to_fit_is_withdrawn() -> None:
    """What is measured has the last word on strides; and the same work takes the same time."""
    builder = GraphBuilder(_graph("aten.relu.default", (Read(1, (), G),), G))
    InPlace().add(builder, Numerics.EXACT)
    builder.recipes[1] = _timed(builder.recipes[1], 2e-3)
    graph = builder.finish()
    assert settled(graph).recipes[2].time_s == 2e-3
    builder.values[2] = Value(2, "b", G.extent_B, Role.ACTIVATION, Geometry("float32", SHAPE, (1, 4, 32)))
    withdrawn = settled(builder.finish())
    assert not withdrawn.recipes[2].consumes
    assert withdrawn.recipes[2].op == "aten.relu.default"
    check_graph(withdrawn)


def _timed(recipe: Recipe, time_s: float) -> Recipe:
    return Recipe(
        recipe.id, recipe.op, recipe.outputs, recipe.reads, args=recipe.args, trace=recipe.trace, time_s=time_s
    )
