"""A plan over several graphs says where the model breaks, and why."""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.ir.plan import GraphBreak
from lowtide.report.explain import explain, render
from lowtide.report.headline import headline, headline_rows
from lowtide.report.html import html_of
from tests.report.plan_records import record

BREAKS = (
    GraphBreak("print cannot be traced", "model.py:12", '    print("<h>")'),
    GraphBreak("a call that torch leaves to Python"),
)


def test_breaks_are_listed_with_cause_and_line() -> None:
    broken = replace(record(), graphs=3, breaks=BREAKS)
    told = dict(headline_rows(headline(broken)))["graph breaks"].splitlines()
    assert told[0] == "3 graphs on one timeline; the code between them runs in the reserve"
    assert told[1] == '1. model.py:12 (print("<h>")): print cannot be traced'
    assert told[2].startswith("2. a line that torch does not tell (TORCH_LOGS=graph_breaks shows it): a call that")
    assert 'print("<h>")' in render(explain(broken), verbose=True)
    assert "&lt;h&gt;" in html_of(broken)


def test_one_graph_has_nothing_to_list() -> None:
    assert "graph breaks" not in dict(headline_rows(headline(record())))
