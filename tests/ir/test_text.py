"""Every value round-trips through its text form, and bad files say what is wrong with them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import PlanFileError
from lowtide.ir.call import Const, Held, Items, Ref
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Graph, Origin, Recipe
from lowtide.ir.layout import Layout
from lowtide.ir.machine import Link, Machine
from lowtide.ir.plan import Covers, Environment, Outcome, PlanRecord, Problem, Status
from lowtide.ir.schedule import Boundary, Drop, Fetch, Run, Schedule, Send
from lowtide.ir.text import dumps, load_plan, loads, save_plan
from tests.ir import examples
from tests.ir.graphs import graphs
from tests.ir.layouts import stacked
from tests.ir.schedules import Writer

SCHEDULE = Schedule(
    (Boundary(0), Run(0, (2,)), Run(1, (3,)), Drop(2), Run(2, (4,)), Boundary(1), Run(3, (6,))),
)


def _record(**facts: Any) -> PlanRecord:
    outcome = Outcome(SCHEDULE, Status.FEASIBLE, "test", bound_s=7.0, stats={"moves": 3})
    base = PlanRecord(examples.chain(), SCHEDULE, outcome, 300, 250, 7.5, 260, 7.5, outside_B=11)
    return msgspec.structs.replace(base, **facts)


@given(graphs(), st.integers(0, 1000))
def test_graphs_and_schedules_round_trip(graph: Graph, seed: int) -> None:
    schedule = Writer(graph, Random(seed), 0.5).write()
    assert loads(dumps(graph), Graph) == graph
    assert loads(dumps(schedule), Schedule) == schedule


def test_everything_round_trips() -> None:
    layout = stacked(examples.chain(), SCHEDULE)
    machine = Machine("m", links=(Link("device", "host", "to_host", math.inf),), flops={"float32": 1e12})
    offloaded = Schedule((Boundary(0), Send(1, "host", (0,)), Fetch(1, "host"), Drop(1, "host")))
    assert loads(dumps(layout), Layout) == layout
    assert loads(dumps(machine), Machine) == machine
    assert loads(dumps(offloaded), Schedule) == offloaded
    problem = Problem(examples.dropout(), 5, time_limit_s=math.inf)
    assert loads(dumps(problem), Problem) == problem
    record = _record(covers=Covers(("a",), ("b",)), environment=Environment("2.13", "cpu", 2, "0.1"))
    assert loads(dumps(record), PlanRecord) == record


def test_arguments_keep_their_types() -> None:
    args = (2.0, 2, True, None, "s", Ref(0), Const("float", "-inf"), Held(3), Items((1.0, Items((Ref(0),)))))
    graph = examples.chain()
    changed = msgspec.structs.replace(graph.recipes[1], args=args, kwargs=(("eps", 1.0),), origin=Origin("m", "f:1"))
    back = loads(dumps(msgspec.structs.replace(graph, recipes=(changed,))), Graph).recipes[0]
    assert isinstance(back, Recipe)
    assert back == changed
    assert [type(a) for a in back.args[:3]] == [float, int, bool]


def test_geometry_round_trips() -> None:
    graph = examples.chain()
    value = msgspec.structs.replace(graph.values[0], geometry=Geometry("bfloat16", (2, 3), (3, 1), 4, "cuda"))
    graph = msgspec.structs.replace(graph, values=(value, *graph.values[1:]))
    assert loads(dumps(graph), Graph) == graph


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_infinities_round_trip(number: float) -> None:
    outcome = Outcome(None, Status.UNSOLVED, "x", bound_s=number, stats={"gap": number, "list": [1, number]})
    back = loads(dumps(outcome), Outcome)
    assert repr(back) == repr(outcome)
    assert repr(loads(dumps(_record(time_s=number)), PlanRecord).time_s) == repr(number)


@pytest.mark.parametrize("status", list(Status))
def test_a_status_is_written_by_name(status: Status) -> None:
    text = dumps(Outcome(None, status, "x"))
    assert json.loads(text)["body"]["status"] == status.name
    assert loads(text, Outcome).status is status


def test_numbers_of_other_libraries_are_plain_numbers_in_the_text() -> None:
    numpy = pytest.importorskip("numpy")
    outcome = Outcome(None, Status.UNSOLVED, "x", stats={"a": numpy.float32(0.5), "b": numpy.int64(3)})
    assert loads(dumps(outcome), Outcome).stats == {"a": 0.5, "b": 3}


def test_what_has_no_text_form_is_refused() -> None:
    with pytest.raises(PlanFileError, match="no file format"):
        dumps(3)  # type: ignore[arg-type]
    with pytest.raises(PlanFileError, match="cannot write"):
        dumps(Outcome(None, Status.UNSOLVED, "x", stats={"a": object()}))
    with pytest.raises(PlanFileError, match="reserved"):
        dumps(Outcome(None, Status.UNSOLVED, "x", stats={"$float": 1}))


def test_saving_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    save_plan(_record(), path)
    assert load_plan(path) == _record()
    with pytest.raises(PlanFileError):
        save_plan(_record(outcome=Outcome(None, Status.UNSOLVED, "x", stats={"a": object()})), path)
    assert load_plan(str(path)) == _record()
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def _edited(**header: Any) -> str:
    return json.dumps({**json.loads(dumps(_record())), **header})


def _body_edited(**facts: Any) -> str:
    data = json.loads(dumps(_record()))
    data["body"].update(facts)
    del data["digest"]
    return json.dumps(data)


BAD = {
    "empty": ("", "truncated or damaged"),
    "truncated": (dumps(_record())[:-40], "truncated or damaged"),
    "binary": (b"\x80\x02\xff\xfe", "truncated or damaged"),
    "deep": ("[" * 100_000, "truncated or damaged"),
    "foreign object": ('{"name": "package", "version": 1}', "not a lowtide file"),
    "foreign list": ("[1, 2]", "not a lowtide file"),
    "another kind": (dumps(examples.chain()), "holds a 'graph', not a plan"),
    "newer": (_edited(version=2), "newer than this lowtide's 1"),
    "older": (_edited(version=0), "older than this lowtide's 1"),
    "no version": (_edited(version="x"), "damaged"),
    "newer inside": (_body_edited(version=2), "newer"),
    "changed digit": (dumps(_record()).replace('"budget_B":300', '"budget_B":301'), "does not match its digest"),
    "wrong type": (_body_edited(budget_B="much"), "damaged"),
    "bad status": (_body_edited(outcome={"status": "FINE"}), "damaged"),
    "bad outcome": (_body_edited(outcome=3), "damaged"),
    "bad float": (_body_edited(time_s={"$float": "x"}), "damaged"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_files_name_the_file_the_fault_and_the_remedy(name: str, tmp_path: Path) -> None:
    content, fault = BAD[name]
    path = tmp_path / "some plan.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PlanFileError, match=fault) as caught:
        load_plan(path)
    assert str(path) in str(caught.value)
    assert any(word in str(caught.value) for word in ("Make the plan again", "make the plan again", "Name a"))


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.json", tmp_path):
        with pytest.raises(PlanFileError, match="cannot be read"):
            load_plan(path)


def test_an_illegal_plan_is_refused_when_loaded(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(_record(schedule=Schedule(SCHEDULE.steps[:4])), path)
    with pytest.raises(PlanFileError, match=r"illegal plan: .*'boundaries'"):
        load_plan(path)
    save_plan(_record(peak_B=249), path)
    with pytest.raises(PlanFileError, match="239 B of 238 B"):
        load_plan(path)


def test_a_pretty_printed_plan_is_the_same_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(json.loads(dumps(_record())), indent=2))
    assert load_plan(path) == _record()
