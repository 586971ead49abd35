"""What a profile does to the graph, and what it must not do to the process."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from lowtide.device.observer import observe
from lowtide.errors import LowtideError
from lowtide.ir.call import Held
from lowtide.ir.check_graph import check_graph
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Effect, Graph
from lowtide.profile.cache import ProfileCache
from lowtide.profile.measure import profile_graph
from tests.profile.programs import Program, Seen, contiguous


def chain(*ops: str, size: int = 64) -> Graph:
    p = Program()
    value = p.given(contiguous("float32", size))
    for op in ops:
        value = p.call(op, Seen(value))
    return p.graph()


def test_every_signature_is_measured_once(tmp_path: Path) -> None:
    graph = chain("aten.relu.default", "aten.tanh.default", "aten.relu.default")
    cache = ProfileCache(tmp_path)
    first = profile_graph(graph, cache=cache)
    assert (first.report.signatures, first.report.measured, first.report.cached) == (2, 2, 0)
    again = profile_graph(graph, cache=ProfileCache(tmp_path))
    assert (again.report.measured, again.report.cached) == (0, 2)
    assert again.graph == first.graph
    assert first.graph.key == graph.key
    check_graph(first.graph)


def test_real_geometry_flows_on() -> None:
    """The captured geometry says row-major; what the operator returns is channels-last, in another dtype."""
    p = Program()
    last = Geometry("float32", (2, 4, 3, 3), (36, 1, 12, 4))
    y = p.call("aten.silu.default", Seen(p.given(last)))
    z = p.call("aten.gt.Scalar", Seen(y), 0.5)
    graph = p.graph()
    wrong = contiguous("float32", 2, 4, 3, 3)
    values = [
        msgspec.structs.replace(v, geometry=wrong, size_B=wrong.extent_B) if v.id in (y, z) else v for v in graph.values
    ]
    profiled = profile_graph(msgspec.structs.replace(graph, values=tuple(values)))
    assert profiled.graph.values[y].geometry == last
    assert profiled.graph.recipes[1].reads[0].geometry == last
    found = profiled.graph.values[z]
    assert found.geometry is not None
    assert (found.geometry.dtype, found.geometry.stride, found.size_B) == ("bool", last.stride, 72)
    assert [(c.value, c.captured) for c in profiled.report.corrected] == [(y, wrong), (z, wrong)]


def test_a_replay_costs_what_it_repeats() -> None:
    p = Program()
    x = p.given(contiguous("float32", 64))
    p.call("aten.native_dropout.default", Seen(x), 0.5, True, returns=2, effect=Effect.RANDOM)
    graph = profile_graph(p.graph()).graph
    once, again = graph.recipes
    assert once.trace.outputs[2] is None  # the state is saved outside the call
    assert again.trace.outputs == once.trace.outputs[:2]
    assert None not in again.trace.outputs
    assert (again.time_s, again.trace.events) == (once.time_s, once.trace.events)
    check_graph(graph)


def test_the_generator_is_not_advanced() -> None:
    p = Program()
    x = p.given(contiguous("float32", 64))
    p.call("aten.native_dropout.default", Seen(x), 0.5, True, returns=2, effect=Effect.RANDOM)
    p.call("aten.bernoulli.p", Seen(x), 0.5, effect=Effect.RANDOM)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    profile_graph(p.graph())
    assert torch.equal(torch.get_rng_state(), before)


def test_modes_of_the_caller_do_not_reach_the_operators() -> None:
    p = Program()
    x, w = p.given(contiguous("float32", 8, 8)), p.given(contiguous("float32", 8, 8))
    y = p.call("aten.mm.default", Seen(x), Seen(w))
    with torch.autocast("cpu", torch.bfloat16), torch._subclasses.FakeTensorMode():
        graph = profile_graph(p.graph()).graph
    geometry = graph.values[y].geometry
    assert geometry is not None
    assert geometry.dtype == "float32"
    assert graph.recipes[0].trace.events == (256,)
    assert torch.is_grad_enabled()


def test_opaque_recipes_are_not_run() -> None:
    calls: list[int] = []
    library = torch.library.Library("lowtide_test_opaque", "DEF")
    library.define("effect(Tensor x) -> Tensor")

    def effect(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.clone()

    library.impl("effect", effect, "CPU")
    p = Program()
    x = p.given(contiguous("float32", 64))
    y = p.call("lowtide_test_opaque.effect.default", Seen(x), effect=Effect.OPAQUE)
    graph = p.graph()
    sized = msgspec.structs.replace(graph.values[y], size_B=256, geometry=contiguous("float32", 64))
    graph = msgspec.structs.replace(graph, values=(graph.values[0], sized))
    profiled = profile_graph(graph)
    assert calls == []
    assert profiled.report.opaque == ("lowtide_test_opaque.effect.default",)
    recipe = profiled.graph.recipes[0]
    assert (recipe.trace.events, recipe.trace.outputs, recipe.trace.measured) == ((256,), (0,), False)
    assert recipe.time_s > 0
    library._destroy()


def test_what_cannot_be_run_is_named_and_predicted(caplog: pytest.LogCaptureFixture) -> None:
    p = Program()
    x = p.given(contiguous("float32", 8, 8))
    y = p.call("aten.mm.default", Seen(x), Seen(p.given(contiguous("float32", 3, 3))))  # shapes do not fit
    p.call("nobody.nothing.default", Seen(y))
    p.call("higher_order.cond", Seen(x), Held(0))
    profiled = profile_graph(p.graph())
    assert [op for op, _ in profiled.report.failed] == [
        "aten.mm.default",
        "nobody.nothing.default",
        "higher_order.cond",
    ]
    assert all(r.time_s > 0 and not r.trace.measured for r in profiled.graph.recipes)
    assert "aten.mm.default" in caplog.text


def test_an_alias_that_the_graph_does_not_know_is_reported() -> None:
    p = Program()
    x = p.given(contiguous("float32", 64))
    y = p.call("aten.contiguous.default", Seen(x))
    profiled = profile_graph(p.graph())
    assert profiled.report.aliases == ("aten.contiguous.default",)
    assert profiled.graph.values[y].size_B == 0
    check_graph(profiled.graph)


def test_sizes_that_depend_on_data_are_not_called_exact() -> None:
    p = Program()
    x, mask = p.given(contiguous("float32", 64)), p.given(contiguous("bool", 64))
    y = p.call("aten.masked_select.default", Seen(x), Seen(mask))
    profiled = profile_graph(p.graph())
    assert profiled.report.inexact[0][0] == "aten.masked_select.default"
    assert profiled.graph.values[y].size_B == 256  # the most that it can be
    assert not profiled.graph.recipes[0].trace.measured


def test_an_alternative_may_need_more_than_the_program() -> None:
    """Two recipes of one value: its size is the larger, in both traces."""
    p = Program()
    x = p.given(contiguous("float32", 64))
    y = p.call("aten.relu.default", Seen(x))
    graph = p.graph()
    other = msgspec.structs.replace(
        graph.recipes[0], id=1, op="aten.threshold.default", args=(*graph.recipes[0].args, 0, 0)
    )
    profiled = profile_graph(msgspec.structs.replace(graph, recipes=(graph.recipes[0], other)))
    assert profiled.graph.values[y].size_B == 256
    assert [r.trace.outputs for r in profiled.graph.recipes] == [(0,), (0,)]
    check_graph(profiled.graph)


def test_an_interruption_keeps_what_was_measured(tmp_path: Path) -> None:
    graph = chain("aten.relu.default", "aten.tanh.default", "aten.exp.default")

    def stop(done: int, total: int, op: str) -> None:
        assert total == 3
        if op == "aten.exp.default":
            raise KeyboardInterrupt(done)

    state = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        profile_graph(graph, cache=ProfileCache(tmp_path), watch=stop)
    assert torch.equal(torch.get_rng_state(), state)
    assert sum(entry.about.entries for entry in ProfileCache(tmp_path).store.entries()) == 2
    report = profile_graph(graph, cache=ProfileCache(tmp_path)).report
    assert (report.measured, report.cached) == (1, 2)


def test_a_running_profiler_is_no_reason_to_guess() -> None:
    with observe(), pytest.raises(LowtideError, match="already running"):
        profile_graph(chain("aten.relu.default"))
