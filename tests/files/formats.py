"""Every file that lowtide reads: a good one, and everything that is done with it, to be done with damaged ones."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lowtide._core import eager_policies
from lowtide.constraints import Constraints, PlanOptions, PlanRequest
from lowtide.device.fingerprint import fingerprint
from lowtide.errors import LowtideError
from lowtide.ir.bundle import Part, merge
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph
from lowtide.ir.graph_file import read_graph
from lowtide.ir.layout import Layout
from lowtide.ir.likeness import memory
from lowtide.ir.machine import Link, Machine
from lowtide.ir.packing_csv import read_table
from lowtide.ir.plan import Covers, Environment, Outcome, PlanRecord, Problem
from lowtide.ir.schedule import Schedule
from lowtide.ir.tape import load_tape
from lowtide.ir.text import dumps, load_frontier, loads
from lowtide.placers.portfolio import place
from lowtide.plan_cache.store import Header, PlanCache
from lowtide.profile import cache as profile_cache
from lowtide.profile.cache import ProfileCache
from lowtide.profile.machines import links_of, load_machine
from lowtide.profile.measurement import Measurement, Result
from lowtide.profile.needs_cache import known_needs
from lowtide.profile.roofline import predict_graph
from lowtide.record import carried_over, make_record
from lowtide.report.explain import explain, render
from lowtide.report.frontier import render_frontier
from lowtide.report.frontier_page import frontier_html
from lowtide.report.html import html_of
from lowtide.results.frontier import Frontier
from lowtide.results.plan import Plan
from lowtide.units import Budget
from tests.files.mutations import MARKUP, mutated_bytes, mutated_tree, packed
from tests.ir import examples
from tests.ir.frontiers import frontier_record
from tests.ir.traces import random_program


@dataclass(frozen=True)
class Format:
    """One kind of file.

    Arguments:
        suffix: of its name; `.gz` is added at times where the kind may be compressed.
        good: makes a file's content, and what it needs besides.
        use: reads a file and does with it whatever may be done with one from anybody; raises `LowtideError` alone.
        packs: whether it may be compressed.
        tree: what of the content is JSON, to be changed as a tree: everything, line by line, the first two lines of a
            stored file, or nothing. A changed tree gets the digest that it has now, as somebody who changes a file on
            purpose would see to.
    """

    suffix: str
    good: Callable[[], bytes]
    use: Callable[[Path], None]
    packs: bool = False
    tree: str = "whole"


def damaged(form: Format, dice: random.Random, folder: Path) -> Path:
    """Writes a damaged file."""
    data = form.good()
    if form.tree != "none" and dice.random() < 0.85:
        lines = [data] if form.tree == "whole" else data.splitlines()
        at = dice.randrange(2 if form.tree == "stored" else len(lines))
        changed = mutated_tree(json.loads(lines[at]), dice)
        seals = dice.random() < 0.9
        if isinstance(changed, dict) and seals:
            changed = seal_body(changed)
        lines[at] = json.dumps(changed).encode("utf-8", "surrogatepass")
        if form.tree == "stored" and seals:
            lines[2] = hashlib.sha256(b"".join(line + b"\n" for line in lines[:2])).hexdigest().encode()
        data = b"\n".join(lines)
    else:
        data = mutated_bytes(data, dice)
    packs = form.packs and dice.random() < 0.2
    path = folder / f"damaged{form.suffix}{'.gz' if packs else ''}"
    path.write_bytes(packed(data, dice) if packs else data)
    return path


def survives(form: Format, path: Path) -> bool:
    """Whether a file could be used; anything but an error of lowtide's own passes through."""
    try:
        form.use(path)
    except LowtideError as error:
        text = str(error)
        assert text.isprintable() or all(c.isprintable() or c in "\n\t" for c in text)
        return False
    return True


def seal_body(tree: dict[str, Any]) -> dict[str, Any]:
    """With the digest of its body, if it has one."""
    if "digest" in tree and "body" in tree:
        body = msgspec.json.encode(tree["body"], order="sorted")
        return {**tree, "digest": hashlib.sha256(body).hexdigest()}
    return tree


def _stored(about: msgspec.Struct, content: bytes) -> bytes:
    """A file of a store."""
    body = msgspec.json.encode(about) + b"\n" + content + b"\n"
    return body + hashlib.sha256(body).hexdigest().encode() + b"\n"


# plans and graphs ---------------------------------------------------------------------------------------------------


def _planned(graph: Graph, enforced: bool) -> PlanRecord:
    request = PlanRequest(
        graph=graph,
        options=PlanOptions(budget=Budget(of_plain=1.0), work=50),
        constraints=Constraints(enforced=enforced, optimizer_B=700 if enforced else 0),
        covers=Covers(("this",), ("that",)),
        environment=Environment("2.13", "cpu", 2, "0.1"),
        device_B=lambda: 2**30,
    )
    return make_record(request)


@cache
def _graph() -> Graph:
    """Random recipes with replays, options, views, geometry, names, two segments."""
    graph = examples.dropout()
    geometry = Geometry("float32", (200,), (1,))
    values = tuple(msgspec.structs.replace(v, geometry=geometry if v.size_B == 800 else None) for v in graph.values)
    return msgspec.structs.replace(graph, values=values, name="tiny", key="0123456789abcdef")


@cache
def _bundle() -> Graph:
    """Two graphs of a step as one."""
    return merge((Part(_graph()), Part(examples.chain()))).graph


@cache
def plan_bytes(enforced: bool = True) -> bytes:
    """A saved plan, with addresses."""
    return dumps(_planned(_graph(), enforced)).encode()


def _use_plan(path: Path) -> None:
    record = Plan.load(path).record
    text = render(explain(record), verbose=True)
    assert all(c.isprintable() or c == "\n" for c in text)
    page = html_of(record)
    assert MARKUP not in page
    assert "\x1b" not in page
    carry(record, _graph())


def carry(record: PlanRecord, graph: Graph) -> PlanRecord:
    """What is run of a saved plan comes from the graph here."""
    found = carried_over(
        record,
        graph,
        constraints=Constraints(enforced=True),
        budget_B=2**30,
        covers=Covers(),
        environment=Environment(),
    )
    assert found.graph.recipes == graph.recipes
    assert found.graph.segments == graph.segments
    assert [v.size_B for v in found.graph.values] == [v.size_B for v in graph.values]
    return found


def _use_graph(path: Path) -> None:
    graph = read_graph(path)
    record = _planned(graph, True)
    render(explain(record), verbose=True)
    html_of(record)
    predict_graph(graph, load_machine("h200"))


# the others ---------------------------------------------------------------------------------------------------------


def _use_frontier(path: Path) -> None:
    record = Frontier.load(path).record
    assert "\x1b" not in render_frontier(record)
    page = frontier_html(record)
    assert MARKUP not in page
    load_frontier(path)


def _machine_bytes() -> bytes:
    links = (Link("device", "host", "to_host", 1e9, 1e-6), Link("host", "device", "from_host", 1e9, 1e-6))
    return dumps(Machine("mine", links=links, flops={"float32": 1e12}, traffic_Bps=1e11, launch_s=1e-6)).encode()


def _use_machine(path: Path) -> None:
    machine = load_machine(str(path))
    graph = predict_graph(_graph(), machine)
    _planned(graph, False)
    links = links_of(str(path), 1e9)
    options = PlanOptions(budget=Budget(of_plain=1.0), work=20, links=links, host_budget_B=None)
    visiting = predict_graph(examples.host_resident_update(), machine)
    make_record(PlanRequest(graph=visiting, options=options, device_B=lambda: 2**30))


def _use_trace(path: Path) -> None:
    _use_graph(path)


def _use_tape(path: Path) -> None:
    from lowtide.eager_engine.replay import compiled_replay

    tape = load_tape(path)
    compiled_replay(tape, eager_policies()[0], tape.peak_B // 2 + 1)


def _table_bytes() -> bytes:
    rows = ["0,0,9,1000,", "1,2,5,64,", "2,4,11,4096,1024", "3,9,11,512,", "4,0,3,64,"]
    return "\n".join(("id,lower,upper,size,offset", *rows)).encode()


def _use_table(path: Path) -> None:
    try:
        place(read_table(path).packing, work=100)
    except OSError as error:
        pytest.fail(str(error))


def _text_use(kind: type) -> Callable[[Path], None]:
    def use(path: Path) -> None:
        loads(path.read_bytes(), kind, "a file")  # type: ignore[type-var]

    return use


def _outcome() -> Outcome:
    return _planned(_graph(), True).outcome


def _layout() -> Layout:
    layout = _planned(_graph(), True).layout
    assert layout is not None
    return layout


# caches: what cannot be used is no error, but not there ------------------------------------------------------------

_MEASURED = Measurement(
    1e-3, (1024, 512, -2), (Result((), Geometry("float32", (256,), (1,)), 1024, 0),), workers_B=64, flaw=""
)


def _profile_bytes() -> bytes:
    tables = {"entries": {f"key{i}": _MEASURED for i in range(2)}, "verdicts": {"a": ""}, "rates": {"r": 1e9}}
    return _stored(profile_cache.About(fingerprint(), 2), msgspec.json.encode(tables))


def _use_profiles(path: Path) -> None:
    cache = ProfileCache(path.parent / "profiles")
    cache.clear()
    cache.put(fingerprint(), "name", _MEASURED)
    cache.flush()
    (entry,) = cache.store.entries()
    entry.path.write_bytes(path.read_bytes())
    cache = ProfileCache(cache.store.folder)
    found = [cache.get(fingerprint(), f"key{i}") for i in range(2)]
    cache.rate(fingerprint(), "r"), cache.verdict(fingerprint(), "a")
    for measurement in found:
        if measurement is not None:
            recipe = examples.chain().recipes[0]
            trace = measurement.trace(recipe)
            assert 0 <= trace.peak_B < 2**62
    cache.store.entries()
    cache.put(fingerprint(), "key0", _MEASURED)
    cache.flush()
    assert ProfileCache(cache.store.folder).get(fingerprint(), "key0") == _MEASURED


def _cached_bytes() -> bytes:
    header = Header(
        key="0" * 16, structure="1" * 16, size_B=100, name="name", shapes="x float32[2]", budget_B=2**30,
        environment="here", lowtide="0.1",
    )  # fmt: skip
    return _stored(header, plan_bytes())


def _use_plans(path: Path) -> None:
    cache = PlanCache(path.parent / "plans", limit_B=2**20)
    cache.store.folder.mkdir(exist_ok=True)
    cache.store.path(f"{'1' * 16}-{'0' * 16}").write_bytes(path.read_bytes())
    cache.store.entries()
    found = cache.get("1" * 16, "0" * 16)
    cache.shapes_of("1" * 16)
    if found is not None and memory(found.graph) == memory(_graph()):
        carry(found, _graph())


def _needs_bytes() -> bytes:
    import torch

    from lowtide.profile.needs_cache import About, signature_of
    from lowtide.profile.optimizer import OptimizerNeeds

    signature = signature_of(torch.optim.SGD([torch.nn.Parameter(torch.zeros(4))], lr=0.1, momentum=0.9), 1)
    assert signature is not None
    return _stored(About(signature), msgspec.json.encode(OptimizerNeeds(16, (16,), 0, "fake")))


def _use_needs(path: Path) -> None:
    import torch

    from lowtide.profile.needs_cache import needs_store

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(4))], lr=0.1, momentum=0.9)
    folder = path.parent / "needs"
    known_needs(optimizer, folder=folder)
    (entry,) = needs_store(folder).entries()
    entry.path.write_bytes(path.read_bytes())
    needs = known_needs(optimizer, folder=folder)
    assert needs.state_B == sum(needs.state_sizes_B)
    assert needs.temporaries_B >= 0


FORMATS = {
    "plan": Format(".json", plan_bytes, _use_plan, packs=True),
    "graph": Format(".json", lambda: dumps(_graph()).encode(), _use_graph, packs=True),
    "bundle": Format(".json", lambda: dumps(_bundle()).encode(), _use_graph),
    "frontier": Format(".json", lambda: dumps(frontier_record()).encode(), _use_frontier, packs=True),
    "machine": Format(".json", _machine_bytes, _use_machine),
    "trace": Format(".jsonl", lambda: random_program(1).text.encode(), _use_trace, packs=True, tree="lines"),
    "tape": Format(".jsonl", lambda: random_program(2).text.encode(), _use_tape, packs=True, tree="lines"),
    "packing": Format(".csv", _table_bytes, _use_table, tree="none"),
    "schedule": Format(".json", lambda: dumps(_planned(_graph(), True).schedule).encode(), _text_use(Schedule)),
    "outcome": Format(".json", lambda: dumps(_outcome()).encode(), _text_use(Outcome)),
    "layout": Format(".json", lambda: dumps(_layout()).encode(), _text_use(Layout)),
    "problem": Format(".json", lambda: dumps(Problem(_graph(), 5000)).encode(), _text_use(Problem)),
    "measurements": Format(".profile", _profile_bytes, _use_profiles, tree="stored"),
    "cached plan": Format(".plan", _cached_bytes, _use_plans, tree="stored"),
    "optimizer's needs": Format(".needs", _needs_bytes, _use_needs, tree="stored"),
}
