"""The contract of every implementation: values, gradients, buffers and generator as plain PyTorch's, at the level that
it promises; what it hands to the backward takes the bytes that it says; and a tight plan runs with it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch.utils._pytree import tree_leaves

import lowtide
from lowtide.ir.graph import Graph
from lowtide.ir.in_place import plain_candidates
from lowtide.ir.numerics import Numerics
from lowtide.ops.catalogue import FAMILIES, kernels
from lowtide.ops.in_place import InPlace
from lowtide.profile.exactness import Exactness
from tests.ops.examples import EXAMPLES, F32, F64, Example
from tests.ops.forced import Forced, Seen, step
from tests.semantics.pairs import WORK, tighten, unlike

_TIMES = 4.0  # as far from float64 as plain PyTorch, or a little more
_LOSSY = 0.05  # of a tensor's norm
CASES = [pytest.param(e, d, id=f"{e.name}, {str(d).removeprefix('torch.')}") for e in EXAMPLES for d in e.dtypes]


def forced(example: Example, dtype: torch.dtype) -> Forced:
    """An example, captured."""
    torch.manual_seed(0)
    return Forced(example.make().train().to(dtype), example.inputs(dtype))


@pytest.mark.parametrize(("example", "dtype"), CASES)
def test_every_option_keeps_its_promise(example: Example, dtype: torch.dtype) -> None:
    bench = forced(example, dtype)
    assert same_bits(bench.plainly, bench.first) == [], "the program itself"
    finds(example, bench.graph)
    doubted = {(r.group, r.option): r.reason for r in Exactness(None).refuted(bench.graph, bench.held)}
    near: Near | None = None
    for group, option in options(bench.graph):
        what = bench.graph.groups[group].options[option]
        name = f"{bench.graph.groups[group].name}: {what.name}"
        seen = bench.run({group: option})
        level = what.numerics
        if (group, option) in doubted:
            reason = doubted[group, option]
            assert hangs_on_sizes(bench.graph, what.recipes), f"{name} claims to be exact, and is not: {reason}"
            level = Numerics.REASSOCIATED
        if level is Numerics.EXACT:
            assert same_bits(bench.plainly, seen) == [], name
        else:
            near = near or Near.of(example, dtype, bench.plainly)
            assert near.errors(seen, level) == [], name
        declared_B = {v: bench.graph.values[v].size_B for v in seen.saved_B}
        assert seen.saved_B == declared_B, name
    assert same_bits(bench.plainly, bench.run({}, in_place=True)) == [], "in place"


def options(graph: Graph) -> Iterator[tuple[int, int]]:
    """Every option besides the program's own."""
    for g, group in enumerate(graph.groups):
        yield from ((g, k) for k in range(1, len(group.options)))


def finds(example: Example, graph: Graph) -> None:
    """Holds that the families that should have something to do here did find it."""
    groups = [g.name for g in graph.groups]
    operators = {r.op for r in graph.recipes}
    busy = {f.name for f in FAMILIES if any(g.startswith(f"{f.name} ") for g in groups)}
    busy |= {f.name for f in FAMILIES if any(f"lowtide.{kernel}" in operators for kernel in f.kernels)}
    if plain_candidates(graph):
        busy.add(InPlace.name)
    assert set(example.families) <= busy, f"families with nothing to do; groups are {groups}"
    assert set(example.kernels) <= operators


def hangs_on_sizes(graph: Graph, recipes: tuple[int, ...]) -> bool:
    """Whether some kernel of an option may be exact at one size and not at another."""
    own = [kernels().get(graph.recipes[r].op) for r in recipes]
    return any(kernel is not None and kernel.by_size for kernel in own)


def same_bits(plain: Seen, seen: Seen) -> list[str]:
    """Everything that is not bit-equal, strides of gradients and outputs among it."""
    left = [plain.outputs, plain.gradients, plain.buffers, plain.generator]
    right = [seen.outputs, seen.gradients, seen.buffers, seen.generator]
    return unlike(left, right) + strides(plain, seen)


def strides(plain: Seen, seen: Seen) -> list[str]:
    """Outputs and gradients that lie otherwise in memory."""
    pairs = zip((*plain.outputs, *plain.gradients), (*seen.outputs, *seen.gradients), strict=True)
    both = [(a, b) for a, b in pairs if a is not None and b is not None and a.numel()]
    return [f"strides {a.stride()}, {b.stride()}" for a, b in both if a.stride() != b.stride()]


def in_dtype(example: Example, dtype: torch.dtype) -> Seen:
    """The step in another precision, without lowtide."""
    torch.manual_seed(0)
    module = example.make().train().to(dtype)
    return step(module, example.inputs(dtype), module)


@dataclass(frozen=True)
class Near:
    """How far from exact arithmetic a step may be that sums in another order.

    Plain PyTorch's own distance from float64 is what rounding costs in this program. For a step in float64 there is
    nothing finer to compare with: there the cost is that of float32, scaled by the two resolutions, since rounding
    errors of one computation are proportional to the resolution. That distance may be small by chance, since the order
    of a sum is the processor's; in any order a sum of n numbers is about sqrt(n) roundings away (Higham and Mary,
    "A new approach to probabilistic rounding error analysis", 2019), so that much is admitted as well.

    Arguments:
        plain: the step without lowtide.
        truth: the same in float64.
        narrow: whose distance from the truth counts: `plain`, or the step in float32.
        scale: by which that distance is multiplied.
        terms: as many numbers as a sum can have here.
    """

    plain: Seen
    truth: Seen
    narrow: Seen
    scale: float
    terms: int

    @classmethod
    def of(cls, example: Example, dtype: torch.dtype, plain: Seen) -> Near:
        terms = max(x.numel() for x in tree_leaves(example.inputs(dtype)) if isinstance(x, torch.Tensor))
        if dtype is not F64:
            return cls(plain, in_dtype(example, F64), plain, 1.0, terms)
        return cls(plain, plain, in_dtype(example, F32), torch.finfo(F64).eps / torch.finfo(F32).eps, terms)

    def errors(self, seen: Seen, level: Numerics) -> list[str]:
        """Tensors that are further from the truth than the level admits, by name."""
        found = strides(self.plain, seen)
        if not torch.equal(self.plain.generator, seen.generator):
            found.append("generator")
        for kind in ("outputs", "gradients", "buffers"):
            four = (getattr(s, kind) for s in (self.plain, seen, self.truth, self.narrow))
            for index, (a, b, t, n) in enumerate(zip(*four, strict=True)):
                if a is None or b is None:
                    found += [f"{kind} {index}"] if a is not b else []
                    continue
                off, plain_off, norm = distance(b, t), self.scale * distance(n, t), float(t.double().norm())
                limit = _LOSSY * norm if level is Numerics.LOSSY else _TIMES * max(plain_off, self.rounding(a) * norm)
                if not off <= limit:
                    found.append(f"{kind} {index}: {off:.3g} from float64, plain {plain_off:.3g}, norm {norm:.3g}")
        return found

    def rounding(self, tensor: torch.Tensor) -> float:
        """What rounding does to a sum, relative to it: once in its own dtype, in every step in that of sums."""
        if not tensor.is_floating_point():
            return 0.0
        summed = torch.promote_types(tensor.dtype, F32)
        return max(torch.finfo(tensor.dtype).eps, math.sqrt(self.terms) * torch.finfo(summed).eps)


def distance(one: torch.Tensor, truth: torch.Tensor) -> float:
    """The norm of the difference; values that are no numbers have to be the same ones."""
    if one.shape != truth.shape or not bool((one.isfinite() == truth.isfinite()).all()):
        return math.inf
    return float((one.double() - truth.double())[truth.isfinite()].norm())


@pytest.mark.parametrize("family", [f.name for f in FAMILIES])
def test_every_family_has_an_example(family: str) -> None:
    assert any(family in e.families for e in EXAMPLES), f"add one for {family!r} to tests/ops/examples.py"


FIRSTS = list({f: e for e in reversed(EXAMPLES) for f in e.families}.items())


@pytest.mark.parametrize(("family", "example"), FIRSTS, ids=[f for f, _ in FIRSTS])
def test_the_tightest_plan_is_bit_equal(family: str, example: Example) -> None:  # noqa: ARG001  # the name of the test
    torch.manual_seed(0)
    module, inputs = example.make().train().to(example.dtypes[0]), example.inputs(example.dtypes[0])
    state = copy.deepcopy(module.state_dict())
    plain = step(module, inputs, module)
    module.load_state_dict(state)
    fitted = lowtide.fit(module, 1, work=WORK)
    tighten(fitted, lambda m: m(*inputs))
    assert same_bits(plain, step(fitted, inputs, fitted)) == []
