"""Recorded mini-traces: what one operator allocates, and whole programs event by event against a real run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lowtide.ir.call import Const, Items, Ref, View
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Effect, Graph, MiniTrace
from lowtide.profile.measure import profile_graph
from lowtide.profile.samples import samples
from lowtide.profile.signature import Signature
from tests.profile.programs import Program, Seen, contiguous, overwrites
from tests.profile.sequences import execute, synthesise

T = View("aten.t.default", (Ref(0),))


def linear() -> Program:
    p = Program()
    x, w, b = (p.given(contiguous("float32", *s)) for s in ((64, 48), (32, 48), (32,)))
    y = p.call("aten.addmm.default", Seen(b), Seen(x), Seen(w, T))
    y = p.call("aten.gelu.default", Seen(y))
    y = p.call("aten.mul.Scalar", Seen(y), 0.5)
    p.call("aten.sum.dim_IntList", Seen(y), [0], True)
    return p


def mixed_precision() -> Program:
    p = Program()
    x, w = (p.given(contiguous("float32", *s)) for s in ((64, 48), (32, 48)))
    half = ("dtype", Const("dtype", "bfloat16"))
    x16 = p.call("aten._to_copy.default", Seen(x), kwargs=(half,))
    w16 = p.call("aten._to_copy.default", Seen(w), kwargs=(half,))
    y = p.call("aten.mm.default", Seen(x16), Seen(w16, T))
    y, mean, rstd = p.call("aten.native_layer_norm.default", Seen(y), [32], None, None, 1e-5, returns=3)
    p.call("aten.native_layer_norm_backward.default", Seen(y), Seen(y), [32], Seen(mean), Seen(rstd), None, None,
           [True, False, False], returns=1)  # fmt: skip
    return p


def convolutions() -> Program:
    p = Program()
    x, w, g = (p.given(contiguous("float32", *s)) for s in ((2, 3, 16, 16), (8, 3, 3, 3), (8,)))
    y = p.call("aten.convolution.default", Seen(x), Seen(w), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    n, mean, var = p.call("aten._native_batch_norm_legit.no_stats", Seen(y), Seen(g), None, True, 0.1, 1e-5, returns=3)
    r = p.call("aten.relu_.default", Seen(n), consumes=overwrites(n))
    m, at = p.call("aten.max_pool2d_with_indices.default", Seen(r), [2, 2], [2, 2], returns=2)
    back = p.call("aten.max_pool2d_with_indices_backward.default", Seen(m), Seen(r), [2, 2], [2, 2], [0, 0], [1, 1],
                  False, Seen(at))  # fmt: skip
    back, _, _ = p.call("aten.native_batch_norm_backward.default", Seen(back), Seen(y), Seen(g), None, None, Seen(mean),
                        Seen(var), True, 1e-5, [True, True, True], returns=3)  # fmt: skip
    p.call("aten.convolution_backward.default", Seen(back), Seen(x), Seen(w), [0], [1, 1], [1, 1], [1, 1], False,
           [0, 0], 1, [True, True, False], returns=2)  # fmt: skip
    return p


def attention() -> Program:
    p = Program()
    q, k, v = (p.given(contiguous("float32", 2, 4, 40, 16)) for _ in range(3))
    flash = "aten._scaled_dot_product_flash_attention_for_cpu"
    out, lse = p.call(f"{flash}.default", Seen(q), Seen(k), Seen(v), 0.0, True, returns=2)
    p.call(
        f"{flash}_backward.default", Seen(out), Seen(q), Seen(k), Seen(v), Seen(out), Seen(lse), 0.0, True, returns=3
    )
    return p


def text() -> Program:
    p = Program()
    tokens, table = p.given(contiguous("int64", 4, 24)), p.given(contiguous("float32", 100, 32))
    h = p.call("aten.embedding.default", Seen(table), Seen(tokens))
    d, mask = p.call("aten.native_dropout.default", Seen(h), 0.1, True, returns=2, effect=Effect.RANDOM)
    d = p.call("aten.native_dropout_backward.default", Seen(d), Seen(mask), 1.1)
    p.call("aten.embedding_dense_backward.default", Seen(d), Seen(tokens), 100, -1, False)
    flat = View("aten.view.default", (Ref(0), *_items(96, 32)))
    scores = p.call("aten._log_softmax.default", Seen(h, flat), 1, False)
    wanted = View("aten.view.default", (Ref(0), *_items(96)))
    p.call(
        "aten.nll_loss_forward.default", Seen(scores), Seen(p.given(contiguous("int64", 96))), None, 1, -100, returns=2
    )
    p.call("aten.index_select.default", Seen(h, flat), 0, Seen(tokens, wanted))
    return p


def _items(*extents: int) -> tuple[Items]:
    return (Items(extents),)


PROGRAMS = [linear, mixed_precision, convolutions, attention, text]


def given(graph: Graph) -> dict[int, torch.Tensor]:
    """Tensors for what the caller gives."""
    found = {}
    for value in graph.arriving:
        assert value.geometry is not None
        found[value.id] = samples(Signature("", (), (), (value.geometry,)))[0]
    return found


@pytest.mark.parametrize("write", PROGRAMS)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_traces_are_what_happens(write: Callable[[], Program], threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        profiled = profile_graph(write().graph())
        report = profiled.report
        assert (report.failed, report.inexact, report.aliases, report.shared, report.conflicts) == ((),) * 5
        check_graph(profiled.graph)
        assert all(r.trace.measured and r.time_s > 0 for r in profiled.graph.recipes)
        wanted = synthesise(profiled.graph)
        for _ in range(2):
            assert execute(profiled.graph, given(profiled.graph)) == wanted
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2])
def test_allocations_of_worker_threads_are_bounded_apart_from_the_events(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        backward = profile_graph(attention().graph()).graph.recipes[1]
    finally:
        torch.set_num_threads(before)
    assert (backward.trace.workers_B > 0) == (threads > 1)
    assert backward.trace.peak_B >= sum(3 * [2 * 4 * 40 * 16 * 4]) + backward.trace.workers_B


def test_the_traces_of_other_strides_are_others() -> None:
    last = contiguous("float32", 2, 3, 16, 16)
    last = type(last)(last.dtype, last.shape, (768, 1, 48, 3))
    traces = []
    for geometry in (contiguous("float32", 2, 3, 16, 16), last):
        p = Program()
        x, w = p.given(geometry), p.given(contiguous("float32", 8, 3, 3, 3))
        p.call("aten.convolution.default", Seen(x), Seen(w), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        graph = profile_graph(p.graph()).graph
        traces.append(graph.recipes[0].trace)
        found = graph.values[2].geometry
        assert found is not None
        assert found.shape == (2, 8, 16, 16)
    assert traces[0] != traces[1]


def test_a_trace_lists_results_and_temporaries() -> None:
    p = Program()
    x = p.given(contiguous("float32", 100))
    p.call("aten.mul.Scalar", Seen(x), 0.5)
    trace = profile_graph(p.graph()).graph.recipes[0].trace
    assert trace.events[trace.outputs[0] or 0] in (400, 8)
    assert trace.peak_B >= 400
    assert trace.measured


def test_results_that_nobody_lists_die_with_the_call() -> None:
    p = Program()
    x = p.given(contiguous("float32", 8, 16))
    p.call("aten.native_layer_norm.default", Seen(x), [16], None, None, 1e-5, returns=1)
    profiled = profile_graph(p.graph())
    check_graph(profiled.graph)
    trace = profiled.graph.recipes[0].trace
    assert [e for e in trace.events if e > 0] == [512, 32, 32]
    assert trace.events[-2:] == (-3, -2)
    assert execute(profiled.graph, given(profiled.graph)) == [*trace.events, -1]


def test_an_in_place_recipe_allocates_nothing() -> None:
    p = Program()
    x = p.given(contiguous("float32", 64))
    y = p.call("aten.tanh.default", Seen(x))
    p.call("aten.relu_.default", Seen(y), consumes=overwrites(y))
    profiled = profile_graph(p.graph())
    assert profiled.graph.recipes[1].trace == MiniTrace((), (None,), 0, measured=True)
    assert [v.size_B for v in profiled.graph.values] == [256, 256, 256]
    assert profiled.report.aliases == ()
