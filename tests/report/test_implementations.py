"""Which implementation each call site runs is read off the schedule, with what it spares and costs."""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.ir.graph import Graph, Group, Option, Origin, Role
from lowtide.ir.keep_all import keep_all_schedule
from lowtide.ir.numerics import Numerics
from lowtide.ir.plan import Outcome, PlanRecord, Status
from lowtide.planners.implementations.choice import choose
from lowtide.report.explain import explain, render
from lowtide.report.headline import headline
from lowtide.report.html import html_of
from lowtide.report.implementations import Implementations, implementations
from tests.ir.sketch import Sketch

KiB = 1024


def graph() -> Graph:
    """y = relu(x), loss from exp(y + 1); the gradient of relu from y, or from bits of it; 1 + y over y as well."""
    s = Sketch(parts=(0, 0))
    x = s.persistent(64 * KiB, Role.INPUT, "x")
    y, sum_, e = (s.value(64 * KiB, name=n) for n in ("y", "sum", "e"))
    loss, mask = s.value(4 * KiB, Role.OUTPUT, "loss", leaves=0), s.value(2 * KiB, name="mask")
    tangent = s.value(4 * KiB, Role.TANGENT, "tangent", arrives=1)
    g, gx = s.value(64 * KiB, name="g"), s.value(64 * KiB, Role.GRADIENT, "gx", leaves=1)
    s.recipe("aten.relu.default", [x], [y], time_s=0.001)
    plain = s.recipe("aten.add.Scalar", [y], [sum_], time_s=0.001)
    s.recipe("aten.exp.default", [sum_], [e], time_s=0.001)
    s.recipe("aten.sum.default", [e], [loss], time_s=0.001)
    s.recipe("aten.mul.Tensor", [tangent, e], [g], segment=1, time_s=0.001)
    back = s.recipe("aten.threshold_backward.default", [g, y], [gx], segment=1, time_s=0.001, inner_B=[8 * KiB])
    pack = s.recipe("lowtide.pack", [y], [mask], time_s=0.0005, program=False)
    bits = s.recipe("lowtide.from_bits", [g, mask], [gx], segment=1, time_s=0.001, program=False)
    s.recipe("aten.add_.Scalar", [y], [sum_], consumes=[(y, 0)], time_s=0.001, program=False)
    made = s.build()
    options = (Option("program", (back,)), Option("from bits", (pack, bits), Numerics.REASSOCIATED))
    where = Origin("net.act", "model.py:7", "y = relu(x)")
    recipes = tuple(replace(r, origin=where) if r.id in (plain, back) else r for r in made.recipes)
    return replace(made, recipes=recipes, groups=(Group(f"activations {back}", options, "saved values"),))


def record(choice: dict[int, int], in_place: bool = False) -> PlanRecord:
    """The plan that runs a choice once."""
    whole = graph()
    chosen = choose(whole, choice)
    program = tuple(8 if in_place and r == 1 else r for r in chosen.program)
    schedule = keep_all_schedule(replace(chosen, program=program))
    outcome = Outcome(schedule, Status.FEASIBLE, "by hand")
    return PlanRecord(
        graph=whole, schedule=schedule, outcome=outcome, budget_B=512 * KiB, peak_B=300 * KiB, time_s=0.007,
        keep_all_peak_B=340 * KiB, keep_all_time_s=0.006, numerics=Numerics.REASSOCIATED, without=("fusion",),
    )  # fmt: skip


def test_the_program_itself_differs_nowhere() -> None:
    found = implementations(record({}))
    assert found == Implementations((), 2)
    assert str(found) == "0 of 2 call sites differ from the program's"
    assert explain(record({})).sites == ()
    assert "Implementations" not in html_of(record({}))


def test_what_was_chosen_what_it_spares_and_what_it_costs() -> None:
    found = implementations(record({0: 1}, in_place=True))
    assert str(found) == "2 of 2 call sites differ from the program's: 1 x activations from bits, 1 x add in place"
    over, bits = sorted(found.sites, key=lambda s: s.what, reverse=True)
    assert (over.what, over.candidate, over.numerics, over.spared_B) == ("add", "in place", Numerics.EXACT, 64 * KiB)
    assert (bits.what, bits.candidate, bits.numerics) == ("activations", "from bits", Numerics.REASSOCIATED)
    assert bits.spared_B == 62 * KiB  # of y, that nothing else needs then, less the bits
    assert bits.at_once_B == 8 * KiB
    assert abs(bits.cost_s - 0.0005) < 1e-9
    assert (bits.module, bits.source) == ("net.act", "model.py:7")


def test_every_printer_says_so() -> None:
    made = record({0: 1})
    head = headline(made)
    assert head.numerics == "reassociated, without fusion"
    assert head.implementations == "1 of 2 call sites differ from the program's: 1 x activations from bits"
    told = render(explain(made), verbose=True)
    assert "62.0 KiB, 8.00 KiB while it runs" in told
    assert "1 of 1 call sites that run something else" in told
    page = html_of(made)
    assert "<h2>Implementations</h2>" in page
    assert "<td>from bits</td><td>reassociated</td>" in page
