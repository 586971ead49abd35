"""A plan file decides when things run and where they lie; what is run is the program that was captured here."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import lowtide
from lowtide.ir.graph import MiniTrace
from lowtide.ir.text import dumps, save_plan
from lowtide.placers.addresses import lay_out
from tests.files.formats import Format, carry, damaged
from tests.networks import Trace, differences, train, twin

WORK = 300
BATCHES = [torch.randn(64, 16, generator=torch.Generator().manual_seed(i)) for i in range(2)]
_MUTATIONS = 150


class Net(nn.Module):
    """Random operators, views, constants, and enough of everything for a plan to have a choice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 8)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(nn.functional.gelu(self.a(x)) * 0.5)
        h = torch.tanh(self.b(h)).view(8, -1, 64).transpose(0, 1).reshape(-1, 64)
        return torch.cat([self.c(h), self.c(h) * 2.0], dim=1).square().mean()


def _loss(module: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return module(batch)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def made(_own_cache: None) -> tuple[nn.Module, lowtide.Plan, Trace]:
    """A module, a plan for less than it takes, and plain training."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = Net()
    plan = lowtide.plan(module, (BATCHES[0],), budget="85% of plain", work=WORK)
    assert plan.record.layout is not None
    return module, plan, train(twin(module), _loss, BATCHES)


def _nothing(path: Path) -> None:
    """What is done with a file is the test's affair."""


def _seal(tree: Any) -> str:
    body = msgspec.json.encode(tree["body"], order="sorted")
    return json.dumps({**tree, "digest": hashlib.sha256(body).hexdigest()})


def _keyword(graph: Any, code: str) -> None:
    recipe = graph["recipes"][graph["program"][0]]
    recipe["kwargs"].append([f"**(({code}) and {{}}), **dict(), alpha", 1])


def _segment(graph: Any, code: str) -> None:
    graph["segments"][0]["name"] = f"forward(args, z={code}):\n    pass\ndef forward"


def _view(graph: Any, code: str) -> None:
    views = [v for r in graph["recipes"] for read in r["reads"] for v in read["views"]]
    views[0]["kwargs"] = [[f"x=({code}), y", 1]]


def _operator(graph: Any, code: str) -> None:
    recipe = graph["recipes"][graph["program"][0]]
    recipe["op"], recipe["args"] = "operator.call", [code]


def _string(graph: Any, code: str) -> None:
    graph["recipes"][graph["program"][-1]]["args"][-1] = f"') or ({code}) or ('"


def _device(graph: Any, code: str) -> None:
    for value in graph["values"]:
        if value["geometry"] and value["role"] == "activation":
            value["geometry"]["device"] = f"') or ({code}) or ('"


def _name(graph: Any, code: str) -> None:
    graph["name"] = f"\n{code}\n"
    for value in graph["values"]:
        value["name"] = f"\n{code}\n"
    for recipe in graph["recipes"]:
        recipe["origin"] = {"module": f"\n{code}\n", "source": f'"""\n{code}', "text": f"\n{code}"}


@pytest.mark.parametrize(
    ("inject", "refused"),
    [
        (_keyword, True), (_segment, False), (_view, True), (_operator, True), (_string, True), (_device, True),
        (_name, False),
    ],
)  # fmt: skip
def test_text_of_a_plan_file_is_never_run(
    made: tuple[nn.Module, lowtide.Plan, Trace], tmp_path: Path, inject: Callable[[Any, str], None], refused: bool
) -> None:
    module, plan, expected = made
    tree = json.loads(dumps(plan.record))
    mark = tmp_path / "ran"
    inject(tree["body"]["graph"], f"__import__('pathlib').Path({str(mark)!r}).touch()")
    path = tmp_path / "plan.json"
    path.write_text(_seal(tree))
    fitted = lowtide.fit(twin(module), plan=path, work=WORK)
    if refused:
        with pytest.raises(lowtide.PlanMismatch, match="not of this program"):
            fitted(BATCHES[0])
    else:
        assert differences(expected, train(fitted, _loss, BATCHES)) == []
        assert fitted.lowtide.plan.record.schedule == plan.record.schedule
    assert not mark.exists()


def test_a_changed_constant_is_refused_with_what_differs(
    made: tuple[nn.Module, lowtide.Plan, Trace], tmp_path: Path
) -> None:
    module, plan, _ = made
    tree = json.loads(dumps(plan.record))
    del tree["digest"]
    changed = [r for r in tree["body"]["graph"]["recipes"] if 0.5 in r["args"]]
    changed[0]["args"][changed[0]["args"].index(0.5)] = 0.25
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(tree))
    fitted = lowtide.fit(twin(module), plan=path, work=WORK)
    generator = torch.get_rng_state()
    with pytest.raises(lowtide.PlanMismatch, match=r"aten\.mul.*its arguments.*0\.25.*0\.5"):
        fitted(BATCHES[0])
    assert torch.equal(generator, torch.get_rng_state())


def test_seconds_and_traces_of_a_file_are_not_taken_for_those_here(
    made: tuple[nn.Module, lowtide.Plan, Trace], tmp_path: Path
) -> None:
    """Traces without the temporaries that there are would make every allocation after one miss its place."""
    module, plan, expected = made
    graph = plan.record.graph

    def without_temporaries(trace: MiniTrace) -> MiniTrace:
        host_resident = [h for h in trace.outputs if h is not None]
        sizes_B = [[e for e in trace.events if e >= 0][h] for h in host_resident]
        numbers = iter(range(len(host_resident)))
        return MiniTrace(tuple(sizes_B), tuple(None if h is None else next(numbers) for h in trace.outputs))

    recipes = tuple(
        msgspec.structs.replace(r, trace=without_temporaries(r.trace), time_s=2.0 * r.time_s + 1e-3)
        for r in graph.recipes
    )
    poorer = msgspec.structs.replace(graph, recipes=recipes)
    assert any(a.trace != b.trace for a, b in zip(graph.recipes, poorer.recipes, strict=True))
    layout = lay_out(poorer, plan.record.schedule)
    path = tmp_path / "plan.json"
    save_plan(msgspec.structs.replace(plan.record, graph=poorer, layout=layout), path)
    fitted = lowtide.fit(twin(module), plan=path, budget="1GiB", work=WORK)
    assert differences(expected, train(fitted, _loss, BATCHES)) == []
    used = fitted.lowtide.plan.record
    assert used.schedule == plan.record.schedule
    assert [r.trace for r in used.graph.recipes] == [r.trace for r in graph.recipes]
    assert used.time_s < plan.record.time_s * 3
    assert lowtide.memory_stats(fitted).misplaced_allocations == 0


def test_an_implementation_that_is_not_here_does_not_matter_to_a_plan_that_does_not_run_it(
    made: tuple[nn.Module, lowtide.Plan, Trace],
) -> None:
    """On another processor other implementations are exact, so ids differ; the program is the same."""
    from lowtide.planners.implementations.menu import restricted

    _, plan, _ = made
    graph = plan.record.graph
    ran = {step.recipe for step in plan.record.schedule.steps if hasattr(step, "recipe")}
    idle = [r.id for r in graph.recipes if r.id not in ran and r.id not in graph.program]
    assert idle
    fewer = restricted(graph, plan.record.numerics, recipes=idle[:1])
    assert len(fewer.recipes) < len(graph.recipes)
    carried = carry(plan.record, fewer)
    assert len(carried.schedule.steps) == len(plan.record.schedule.steps)
    back = carry(msgspec.structs.replace(carried, graph=fewer), graph)
    assert back.schedule == plan.record.schedule


def test_a_mutated_plan_is_refused_or_trains_with_the_same_bits(
    made: tuple[nn.Module, lowtide.Plan, Trace], tmp_path: Path
) -> None:
    module, plan, expected = made
    form = Format(".json", lambda: dumps(plan.record).encode(), _nothing, packs=True)
    fitted = lowtide.fit(twin(module), budget="1GiB", work=WORK)
    start = {k: v.clone() for k, v in fitted.state_dict().items()}
    fitted(BATCHES[0]).backward()
    used, seed = 0, int(os.environ.get("LOWTIDE_SEED", "0"))
    for number in range(_MUTATIONS):
        path = damaged(form, random.Random(1000 * seed + number), tmp_path)
        try:
            given = lowtide.Plan.load(path)
            fitted.lowtide.use(given)
        except lowtide.LowtideError:
            continue
        finally:
            path.unlink()
        record = fitted.lowtide.plan.record
        if (used < 20 and record.schedule != plan.record.schedule) or used < 8:
            fitted.load_state_dict(start)
            fitted.zero_grad()
            assert differences(expected, train(fitted, _loss, BATCHES)) == [], number
        used += 1
    assert used > 10


@pytest.mark.parametrize("seed", range(3))
def test_a_mutated_plan_cache_is_no_reason_to_fail(
    made: tuple[nn.Module, lowtide.Plan, Trace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    module, _, expected = made
    monkeypatch.setenv("LOWTIDE_PLAN_CACHE", "64MiB")
    monkeypatch.setenv("LOWTIDE_SHIM_DIR", os.environ["LOWTIDE_SHIM_DIR"])
    folder = Path(os.environ["LOWTIDE_CACHE_DIR"]) / "plans"
    for _ in range(2):
        fitted = lowtide.fit(twin(module), budget="85% of plain", work=WORK)
        assert differences(expected, train(fitted, _loss, BATCHES)) == []
        torch._dynamo.reset()
        dice = random.Random(seed)
        for file in [*folder.glob("*.plan"), *folder.parent.glob("profiles/*.json")]:
            content = file.read_bytes()
            form = Format(".x", lambda content=content: content, _nothing, tree="lines")  # type: ignore[misc]
            file.write_bytes(damaged(form, dice, tmp_path).read_bytes())
    fitted = lowtide.fit(twin(module), budget="85% of plain", work=WORK)
    assert differences(expected, train(fitted, _loss, BATCHES)) == []
