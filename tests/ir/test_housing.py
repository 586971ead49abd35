"""Host-resident values: fetched where they are read, updated in either memory, counted where they are."""

from __future__ import annotations

import pytest

from lowtide.errors import IllegalPlan, PlanError
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.housing import hosted_values, housed, movable_values
from lowtide.ir.machine import Link, Machine
from lowtide.ir.schedule import Boundary, Drop, Fetch, Run, Schedule, Send, Step
from lowtide.ir.sequence import blocks_of
from lowtide.ir.simulate import residencies, simulate
from tests.ir import examples

WEIGHT, X, NEW, GRAD = range(4)
ON_DEVICE: list[Step] = [
    Boundary(0),
    Fetch(WEIGHT, "host"),
    Run(0, (GRAD,), (1,)),
    Run(1, (NEW,)),
    Drop(GRAD),
    Send(NEW, "host", (3,)),
    Drop(NEW, after=(5,)),
]
ON_HOST: list[Step] = [
    Boundary(0),
    Fetch(WEIGHT, "host"),
    Run(0, (GRAD,), (1,)),
    Drop(WEIGHT),
    Send(GRAD, "host", (2,)),
    Drop(GRAD, after=(4,)),
    Run(2, (NEW,), (4,)),
    Drop(GRAD, "host", (6,)),
]
MACHINE = Machine(
    "m", links=(Link("device", "host", "to_host", rate_Bps=20.0), Link("host", "device", "from_host", rate_Bps=10.0))
)


def _hosted() -> Graph:
    return housed(examples.host_resident_update(), [WEIGHT])


def test_what_replaces_a_host_resident_value_is_host_resident() -> None:
    graph = examples.host_resident_update()
    assert movable_values(graph) == (WEIGHT,)
    hosted = housed(graph, [WEIGHT])
    assert hosted_values(hosted) == (WEIGHT,)
    assert (hosted.persistent_B, hosted.hosted_B) == (0, 40)
    assert hosted.values[NEW].memory == "host"
    assert housed(hosted, []) == graph


def test_only_movable_values_are_host_resident() -> None:
    with pytest.raises(PlanError, match=r"value 1 \(x\): only movable"):
        housed(examples.host_resident_update(), [X])


@pytest.mark.parametrize("steps", [ON_DEVICE, ON_HOST], ids=["device", "host"])
def test_a_fetch_of_a_host_resident_value_is_legal_and_counted(steps: list[Step]) -> None:
    graph, schedule = _hosted(), Schedule(tuple(steps))
    timeline = simulate(graph, schedule, MACHINE)
    peaks = dict(timeline.memory_peaks_B)
    assert peaks == {"device": 120, "host": 40 if steps is ON_DEVICE else 80}
    check(graph, schedule, 120, host_budget_B=peaks["host"])
    for limits in ((119, 1000), (1000, peaks["host"] - 1)):
        with pytest.raises(IllegalPlan, match="budget"):
            check(graph, schedule, limits[0], host_budget_B=limits[1])


def test_a_fetched_host_resident_value_is_an_allocation_and_is_updated_in_place() -> None:
    blocks = blocks_of(_hosted(), Schedule(tuple(ON_DEVICE)), small_B=0)
    assert [(b.step, b.value) for b in blocks] == [(1, NEW), (2, GRAD)]
    lifetimes = residencies(_hosted(), Schedule(tuple(ON_DEVICE)))
    assert [(r.value, r.start, r.stop, r.engine) for r in lifetimes if r.value in (WEIGHT, NEW)] == [
        (WEIGHT, 1, 6, "from_host")
    ]


def test_copies_overlap_compute_and_are_waited_for() -> None:
    timeline = simulate(_hosted(), Schedule(tuple(ON_DEVICE)), MACHINE)
    assert [(m.engine, m.start_s, m.stop_s) for m in timeline.instants[1:]] == [
        ("from_host", 0.0, 4.0),
        ("compute", 4.0, 5.0),
        ("compute", 5.0, 6.0),
        ("compute", 6.0, 6.0),
        ("to_host", 6.0, 8.0),
        ("compute", 8.0, 8.0),
    ]
    on_host = simulate(_hosted(), Schedule(tuple(ON_HOST)), MACHINE).instants
    assert (on_host[6].engine, on_host[6].start_s, on_host[6].stop_s) == ("host", 7.0, 8.0)


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ("leave", ON_DEVICE[:5]),
        ("resident", [ON_DEVICE[0], Run(0, (GRAD,))]),
        ("in-flight", [*ON_DEVICE[:2], Run(0, (GRAD,)), *ON_DEVICE[3:]]),
        ("freed-in-flight", [*ON_DEVICE[:6], Drop(NEW)]),
        ("freed-in-flight", [*ON_HOST[:7], Drop(GRAD, "host")]),
        ("in-flight", [*ON_DEVICE[:5], Send(NEW, "host"), Drop(NEW, after=(5,))]),
        ("drop-persistent", [Boundary(0), Drop(WEIGHT, "host")]),
        ("fetch", [*ON_DEVICE, Fetch(WEIGHT, "host", (5,))]),
        ("group", [*ON_HOST[:3], Run(1, (NEW,)), Send(GRAD, "host", (2,)), Run(2, (), (4,))]),
    ],
    ids=lambda c: c if isinstance(c, str) else "",
)
def test_a_fetched_value_dropped_before_its_copy_back_is_refused(rule: str, steps: list[Step]) -> None:
    with pytest.raises(IllegalPlan, match=f"'{rule}'"):
        check(_hosted(), Schedule(tuple(steps)))


def test_device_resident_the_same_update_needs_no_copies() -> None:
    graph = examples.host_resident_update()
    check(graph, Schedule((Boundary(0), Run(0, (GRAD,)), Run(1, (NEW,)), Drop(GRAD))), 120, host_budget_B=0)
