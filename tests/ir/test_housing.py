"""Values whose home is on the host: they visit, are updated here or there, and are counted where they are."""

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
    return housed(examples.visiting_update(), [WEIGHT])


def test_a_home_on_the_host_takes_what_replaces_the_value_with_it() -> None:
    graph = examples.visiting_update()
    assert movable_values(graph) == (WEIGHT,)
    moved = housed(graph, [WEIGHT])
    assert hosted_values(moved) == (WEIGHT,)
    assert (moved.persistent_B, moved.hosted_B) == (0, 40)
    assert moved.values[NEW].memory == "host"
    assert housed(moved, []) == graph


def test_only_movable_values_move() -> None:
    with pytest.raises(PlanError, match=r"value 1 \(x\): only movable"):
        housed(examples.visiting_update(), [X])


@pytest.mark.parametrize("steps", [ON_DEVICE, ON_HOST], ids=["device", "host"])
def test_a_visit_is_legal_and_counted(steps: list[Step]) -> None:
    graph, schedule = _hosted(), Schedule(tuple(steps))
    timeline = simulate(graph, schedule, MACHINE)
    peaks = dict(timeline.memory_peaks_B)
    assert peaks == {"device": 120, "host": 40 if steps is ON_DEVICE else 80}
    check(graph, schedule, 120, host_budget_B=peaks["host"])
    for limits in ((119, 1000), (1000, peaks["host"] - 1)):
        with pytest.raises(IllegalPlan, match="budget"):
            check(graph, schedule, limits[0], host_budget_B=limits[1])


def test_what_visits_is_an_allocation_and_what_is_updated_in_it_stays_there() -> None:
    blocks = blocks_of(_hosted(), Schedule(tuple(ON_DEVICE)), small_B=0)
    assert [(b.step, b.value) for b in blocks] == [(1, NEW), (2, GRAD)]
    lifetimes = residencies(_hosted(), Schedule(tuple(ON_DEVICE)))
    assert [(r.value, r.start, r.stop, r.engine) for r in lifetimes if r.value in (WEIGHT, NEW)] == [
        (WEIGHT, 1, 6, "from_host")
    ]


def test_copies_run_beside_compute_and_are_waited_for() -> None:
    timeline = simulate(_hosted(), Schedule(tuple(ON_DEVICE)), MACHINE)
    assert [(m.engine, m.start_s, m.stop_s) for m in timeline.instants[1:]] == [
        ("from_host", 0.0, 4.0),
        ("compute", 4.0, 5.0),
        ("compute", 5.0, 6.0),
        ("compute", 6.0, 6.0),
        ("to_host", 6.0, 8.0),
        ("compute", 8.0, 8.0),
    ]
    beside = simulate(_hosted(), Schedule(tuple(ON_HOST)), MACHINE).instants
    assert (beside[6].engine, beside[6].start_s, beside[6].stop_s) == ("host", 7.0, 8.0)


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
def test_a_visit_cut_short_is_refused(rule: str, steps: list[Step]) -> None:
    with pytest.raises(IllegalPlan, match=f"'{rule}'"):
        check(_hosted(), Schedule(tuple(steps)))


def test_with_its_home_on_the_device_the_same_update_needs_no_copies() -> None:
    graph = examples.visiting_update()
    check(graph, Schedule((Boundary(0), Run(0, (GRAD,)), Run(1, (NEW,)), Drop(GRAD))), 120, host_budget_B=0)
