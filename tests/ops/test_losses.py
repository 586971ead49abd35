"""Losses in chunks: bits, errors, bytes, and what is left alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lowtide.ir.graph import Graph, Option
from lowtide.ir.numerics import Numerics
from lowtide.ops import projected_loss
from lowtide.ops.catalogue import kernels
from lowtide.ops.cross_entropy import CrossEntropy, spans
from lowtide.ops.linear_cross_entropy import LinearCrossEntropy
from lowtide.ops.tied_embedding import TiedEmbedding
from lowtide.profile.measure import profile_graph
from lowtide.profile.roofline import assumed_trace
from tests.ops.examples import Call
from tests.ops.language import CLASSES, TiedTable, Vocabulary, texts, tokens
from tests.ops.offers import difference, offered

MEAN, SUM = 1, 2
ATEN = torch.ops.aten


def case(rows: int, classes: int, dtype: torch.dtype, weighted: bool, ignored: str) -> tuple[Tensor, Tensor, Any]:
    """Logits, targets and class weights."""
    generator = torch.Generator().manual_seed(rows + classes)
    logits = (torch.randn(rows, classes, generator=generator) * 3).to(dtype)
    targets = torch.randint(classes, (rows,), generator=generator)
    if ignored == "all":
        targets.fill_(-100)
    elif ignored == "some":
        targets[::3] = -100
    return logits, targets, torch.rand(classes, generator=generator).to(dtype) if weighted else None


@pytest.mark.parametrize(("extent", "chunks"), [(0, 4), (1, 4), (7, 3), (64, 4), (1000, 4), (1000, 64), (50257, 16)])
def test_chunks_cover_a_range_once(extent: int, chunks: int) -> None:
    found = list(spans(extent, chunks))
    assert [i for a, b in found for i in range(a, b)] == list(range(extent))
    assert len(found) <= chunks


@pytest.mark.parametrize("reduction", [0, MEAN, SUM])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", ["none", "some", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("rows", "classes"), [(0, 5), (1, 1), (7, 5), (300, 33), (37, 1031)])
def test_cross_entropy_has_the_bits_of_torch(
    rows: int, classes: int, dtype: torch.dtype, ignored: str, weighted: bool, reduction: int
) -> None:
    logits, targets, weight = case(rows, classes, dtype, weighted, ignored)
    log_p = ATEN._log_softmax(logits, 1, False)
    loss, total = ATEN.nll_loss_forward(log_p, targets, weight, reduction, -100)
    upstream = torch.randn(loss.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    slope = ATEN.nll_loss_backward(upstream, log_p, targets, weight, reduction, -100, total)
    gradient = ATEN._log_softmax_backward_data(slope, log_p, 1, dtype)

    forward, backward = (kernels()[f"lowtide.cross_entropy{part}"].run for part in ("", "_backward"))
    head = (logits, targets, weight, reduction, -100, dtype, None, 4)
    found_loss, found_total = forward(*head)
    found = backward(*head, upstream, total, (rows, classes))
    assert_same(found_loss, loss)
    if reduction:
        assert_same(found_total, total)
    assert_same(found, gradient)
    assert_same(backward(*head, upstream, total, (rows, classes), True), gradient)


def assert_same(one: Tensor, other: Tensor) -> None:
    """Holds that two tensors are equal, whatever is no number."""
    assert one.dtype == other.dtype
    assert torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    assert torch.equal(one.isnan(), other.isnan())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("reduction", "weighted"), [(MEAN, False), (SUM, True)])
@pytest.mark.parametrize(("rows", "classes", "chunks"), [(0, 33, 4), (5, 33, 3), (300, 700, 4), (130, 1031, 16)])
def test_all_kernels_are_as_near_to_float64_as_torch(
    rows: int, classes: int, chunks: int, reduction: int, weighted: bool, turned: bool, bias: bool
) -> None:
    _, targets, weight = case(rows, classes, torch.float32, weighted, "some")
    generator = torch.Generator().manual_seed(4)
    hidden, table = torch.randn(rows, 24, generator=generator), torch.randn(classes, 24, generator=generator)
    offset = torch.randn(classes, generator=generator) if bias else None
    upstream = torch.tensor(0.7)
    plain = step(hidden, table, offset, targets, weight, reduction, upstream)
    wide = [None if t is None else t.double() for t in (hidden, table, offset, weight)]
    truth = step(wide[0], wide[1], wide[2], targets, wide[3], reduction, upstream.double())

    head = (None, hidden, table.t(), offset, targets, weight, reduction, -100, torch.float32, None, chunks)
    shape = (1, classes) if bias else None
    loss, total, largest, log_sum = projected_loss.linear_cross_entropy(*head)
    late = (upstream, total, None)
    first = projected_loss.input_gradient(*head, *late)
    by_classes = projected_loss.weight_gradient(*head, *late, largest, log_sum, turned, True, shape)
    by_rows = projected_loss.linear_cross_entropy_backward(*head, *late, True, turned, True, shape)
    at_once = projected_loss.linear_cross_entropy_with_gradients(*head, True, turned, True, shape)
    later = tuple(projected_loss.scaled(t, upstream, t.dtype) for t in at_once[2:])
    logits = hidden @ table.t() if offset is None else torch.addmm(offset, hidden, table.t())
    given = (logits, None, None, None, *head[4:])
    whole = F.cross_entropy(logits, targets, weight, reduction="mean" if reduction == MEAN else "sum")
    assert_same(projected_loss.linear_cross_entropy(*given)[0], whole)
    from_logits = projected_loss.input_gradient(logits, None, table.t(), None, *head[4:], *late)

    for found in ((first, *by_classes), by_rows, later, (from_logits, *by_classes)):
        near((loss, *found), plain, truth, turned, max(rows, classes))


def step(
    hidden: Any, table: Any, offset: Any, targets: Tensor, weight: Any, reduction: int, upstream: Tensor
) -> list[Tensor]:
    """Loss and gradients by autograd."""
    leaves = [t.clone().requires_grad_() for t in (hidden, table, offset) if t is not None]
    logits = F.linear(leaves[0], leaves[1], leaves[2] if offset is not None else None)
    loss = F.cross_entropy(logits, targets, weight, reduction="mean" if reduction == MEAN else "sum")
    torch.autograd.backward(loss, upstream)
    return [loss.detach(), *(t.grad for t in leaves if t.grad is not None)]


def near(found: tuple[Tensor, ...], plain: list[Tensor], truth: list[Tensor], turned: bool, terms: int) -> None:
    """Holds that every tensor is at most a little farther from float64 than torch's own, or than a sum rounds anyway.

    Arguments:
        terms: of a sum: in any order it is about the square root of it roundings away.
    """
    rounding = math.sqrt(terms) * torch.finfo(torch.float32).eps
    for i, (one, other, exact) in enumerate(zip(found, plain, truth, strict=False)):
        seen = (one.t() if turned and i == 2 else one).reshape(exact.shape)
        if not bool(exact.isfinite().all()):
            assert not bool(seen.isfinite().all()) or not seen.numel()
            continue
        off = float((seen.double() - exact).norm())
        assert off <= 4 * max(float((other.double() - exact).norm()), rounding * float(exact.norm()))


FAMILIES = (LinearCrossEntropy(least_B=0, chunks=(2, 5), exact_rows=1), CrossEntropy(least_B=0))


def losses(model: nn.Module, args: tuple[Any, ...], numerics: Numerics = Numerics.LOSSY) -> tuple[Graph, list[Option]]:
    """What both families offer, besides the program."""
    graph = offered(model, args, *FAMILIES, numerics=numerics)
    return graph, [o for g in graph.groups for o in g.options[1:]]


def test_a_level_admits_its_options_and_no_others() -> None:
    batch = texts(rows=1)(torch.float32)
    exact = losses(Vocabulary(), batch, Numerics.EXACT)[1]
    every = losses(Vocabulary(), batch)[1]
    assert {o.numerics for o in exact} == {Numerics.EXACT}
    assert [o for o in every if o.numerics is Numerics.EXACT] == exact
    assert {o.numerics for o in every} == {Numerics.EXACT, Numerics.REASSOCIATED}


def test_logits_that_are_returned_are_whole_but_not_their_gradient(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "lowtide"):
        graph, options = losses(Vocabulary(returned=True), texts(rows=1)(torch.float32))
    assert "return the loss alone" in caplog.text
    assert [o.name.split(",")[0] for o in options] == ["from logits"]
    made = {graph.recipes[r].op for r in options[0].recipes}
    assert "aten.addmm.default" not in made
    assert difference(graph, graph.groups[0], options[0]) == ""


@pytest.mark.parametrize(
    "model",
    [
        Vocabulary(label_smoothing=0.1),
        Call(lambda t, y: F.cross_entropy(torch.ones(3, 7, 11) * t.sum(), y.view(-1)[:33].view(3, 11) % 7)),
    ],
    ids=["label smoothing", "images"],
)
def test_other_losses_are_left_alone(model: nn.Module) -> None:
    assert losses(model, texts(rows=1)(torch.float32))[1] == []


def test_small_logits_are_left_alone() -> None:
    graph = offered(Vocabulary(), texts(rows=1)(torch.float32), LinearCrossEntropy(), CrossEntropy(), TiedEmbedding())
    assert graph.groups == ()


def test_padding_and_repetition_keep_their_order_in_tied_embeddings() -> None:
    graph = offered(TiedTable(), tokens(torch.float32), TiedEmbedding(least_B=0))
    (group,) = graph.groups
    assert difference(graph, group, group.options[1]) == ""
    over = [r for r in graph.recipes if r.consumes]
    assert [r.op for r in over] == ["lowtide.add_embedding_gradient"]


def test_what_kernels_allocate_is_what_they_declare() -> None:
    graph = offered(Vocabulary(), texts(rows=8)(torch.float32), *FAMILIES, TiedEmbedding(least_B=0))
    measured = profile_graph(graph).graph
    logits_B = 8 * 128 * CLASSES * 4
    seen = 0
    for recipe in measured.recipes:
        if recipe.op.startswith("lowtide.linear_cross_entropy"):
            declared = assumed_trace(graph, graph.recipes[recipe.id])
            assert recipe.trace.measured
            assert recipe.trace.peak_B <= 1.1 * declared.peak_B + 32_768, recipe.op
            by_classes = recipe.op.endswith("weight_gradient")  # of so few there is one chunk
            assert by_classes or recipe.trace.peak_B < logits_B, recipe.op
            seen += 1
    assert seen >= len(FAMILIES[0].chunks)
