"""The explanation says what the schedule does, value by value."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.ir.graph import Effect
from lowtide.ir.plan import Outcome, PlanRecord, Status
from lowtide.ir.simulate import simulate
from lowtide.report.explain import explain, render
from lowtide.report.fate import fates
from lowtide.report.headline import headline, headline_rows
from tests.report.plan_records import STATE, A, B, MiB, X, graph, record, schedule


def test_the_record_claims_what_the_simulator_says() -> None:
    made = record()
    timeline = simulate(made.graph, made.schedule)
    assert timeline.peak_B + made.outside_B == made.peak_B
    assert timeline.time_s == pytest.approx(made.time_s)


def test_fates_follow_every_value() -> None:
    found = fates(graph(), schedule())
    assert found[B].lifetimes == ((2, 4), (8, 10))
    assert (found[B].recomputations, found[B].replays, found[B].paid_s) == ((6,), 1, 0.002)
    assert found[B].absence(5) == (4, 8)
    assert found[B].covering(5) is None
    assert found[A].lifetimes == ((1, 16),)
    assert found[A].recomputations == ()
    assert found[X].lifetimes == ((0, 17),)
    assert found[STATE].redo_s == 0.0


def test_rows_are_what_matters_by_size() -> None:
    told = explain(record())
    assert [(r.name, r.fate) for r in told.rows] == [
        ("h", "short-lived"),
        ("a", "kept"),
        ("b", "replayed once"),
        ("x", "given"),
        ("mask", "kept"),
        ("loss", "handed over"),
        ("state", "kept"),
    ]
    by_name = {r.name: r for r in told.rows}
    assert by_name["b"].because == "2 ms to redo, away in steps 4-7 and so at the peak, step 5"
    assert by_name["b"].cost_s == 0.002
    assert by_name["a"].because == "4 ms to redo, held across steps 1-15; peak is step 5"
    assert by_name["a"].cost_s == 0.0
    assert (by_name["a"].module, by_name["a"].source) == ("net.addmm", "model.py:10")
    assert by_name["a"].text == "y = addmm(x)  # <&>"


def test_top_limits_rows_but_not_the_count() -> None:
    told = explain(record(), top=2)
    assert [r.name for r in told.rows] == ["h", "a"]
    assert told.matter == 7
    assert explain(record(), top=0).rows == ()


def test_a_pure_recipe_run_twice_is_a_rematerialisation() -> None:
    made = record()
    again = msgspec.structs.replace(made.graph.recipes[6], state=None)
    first = msgspec.structs.replace(made.graph.recipes[1], effect=Effect.PURE, state=None)
    recipes = (made.graph.recipes[0], first, *made.graph.recipes[2:6], again)
    changed = msgspec.structs.replace(made, graph=msgspec.structs.replace(made.graph, recipes=recipes))
    assert {r.name: r.fate for r in explain(changed).rows}["b"] == "rematerialised once"


def test_headline_carries_every_claim() -> None:
    head = headline(record())
    assert head.peak.step == 5
    assert str(head.peak) == "step 5 (forward): aten.sum, net.sum model.py:13"
    parts = head.breakdown
    assert parts.persistent_B + parts.outside_B + parts.optimizer_B == 5 * MiB
    assert head.floor_operators == ("aten.mul (net.mul model.py:11)", "aten.mm (net.mm model.py:10)")
    rows = dict(headline_rows(head))
    assert rows["budget"] == "40.0 MiB, accounted"
    assert rows["proved floor"] == "31.0 MiB, for schedules in program order"
    assert rows["overhead"] == "12.5 %"
    assert rows["gap"] == "5.9 %"
    assert rows["outside"] == "optimizer state"
    assert rows["status"].startswith("feasible: ")


def test_operators_that_set_the_floor_are_counted() -> None:
    made = record()
    outcome = msgspec.structs.replace(made.outcome, floor_recipes=(4, 5, 4))
    rows = dict(headline_rows(headline(msgspec.structs.replace(made, outcome=outcome))))
    assert rows["set by"] == "2 x aten.mul (net.mul model.py:11); aten.mm (net.mm model.py:10)"


def test_no_bound_is_said_and_not_divided_by() -> None:
    rows = dict(headline_rows(headline(record(bound_s=0.0))))
    assert (rows["proved bound"], rows["gap"]) == ("none", "no bound")


def test_render_is_plain_text_with_the_main_facts() -> None:
    text = render(explain(record(Status.OPTIMAL)), width=160, verbose=True)
    assert "\x1b" not in text
    for fact in ("40.0 MiB, accounted", "replayed once", "model.py:11", "y = addmm(x)  # <&>", "optimal:"):
        assert fact in text
    assert text == render(explain(record(Status.OPTIMAL)), width=160, verbose=True)


def test_markup_in_names_is_not_interpreted() -> None:
    made = record()
    values = (*made.graph.values[:2], msgspec.structs.replace(made.graph.values[A], name="[red]a[/red]"))
    changed = msgspec.structs.replace(made.graph, values=values + made.graph.values[3:])
    text = render(explain(msgspec.structs.replace(made, graph=changed)), width=200)
    assert "[red]a[/red]" in text


def test_an_outcome_alone_does_not_decide_the_story() -> None:
    """What is told comes from the record's schedule; the outcome's copy may be absent."""
    made = record()
    bare: PlanRecord = msgspec.structs.replace(made, outcome=Outcome(None, Status.FEASIBLE, "x"))
    assert explain(bare).rows == explain(made).rows
