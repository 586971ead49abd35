"""What a terminal of 80 columns shows of a plan: the answer in five lines, and nothing broken in the middle."""

from __future__ import annotations

import re

import msgspec
import pytest

from lowtide.ir.graph import Origin
from lowtide.ir.plan import PlanRecord, Status
from lowtide.report.answer import answer
from lowtide.report.explain import explain, render
from lowtide.report.headline import headline
from tests.report.plan_records import MiB, record

_LONG = Origin(
    "base_model.model.transformer.h.11.attn.self_attention.query_key_value",
    "integrations/sdpa_attention_of_a_very_long_name.py:182",
    "attn_output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=p)",
)


def long_names() -> PlanRecord:
    """The hand-made plan with the names that real networks have."""
    made = record()
    ops = ("aten._scaled_dot_product_flash_attention_for_cpu_backward.default",)
    recipes = tuple(msgspec.structs.replace(r, op=ops[0], origin=_LONG) for r in made.graph.recipes)
    values = tuple(
        msgspec.structs.replace(v, name=f"_scaled_dot_product_flash_attention_for_cpu_backward_{v.id}")
        for v in made.graph.values
    )
    return msgspec.structs.replace(made, graph=msgspec.structs.replace(made.graph, recipes=recipes, values=values))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("make", [record, long_names])
def test_nothing_is_wider_than_the_terminal_and_no_word_is_broken(make, width: int, verbose: bool) -> None:
    wide, narrow = (render(explain(make()), width=w, verbose=verbose) for w in (1_000, width))
    assert max(len(line.rstrip()) for line in narrow.splitlines()) <= width
    words = {word for word in narrow.split() if "…" not in word}
    sources = {"sdpa_attention_of_a_very_long_name.py:182"}  # without its folder, where that does not fit
    assert words <= {*wide.split(), *sources}


@pytest.mark.parametrize("make", [record, long_names])
def test_the_first_five_lines_answer(make) -> None:
    lines = render(explain(make()), width=80).splitlines()
    assert [line[:10].strip() for line in lines[:6]] == ["fits", "peak", "overhead", "bound", "next", ""]


def test_what_is_proved_is_behind_verbose() -> None:
    short, long = (render(explain(record()), width=80, verbose=verbose) for verbose in (False, True))
    assert "proved floor" not in short
    assert "--verbose" in short
    assert "proved floor" in long
    assert len(short.splitlines()) < len(long.splitlines())


def test_the_end_of_a_long_place_is_what_is_kept() -> None:
    lines = render(explain(long_names()), width=80).splitlines()
    assert any(
        re.search(r"….*query_key_value sdpa_attention_of_a_very_long_name.py:182$", line.rstrip()) for line in lines
    )


def test_at_a_gap_of_nothing_nobody_is_sent_to_compare() -> None:
    closed = record(Status.FEASIBLE, bound_s=0.018)
    assert closed.gap < 0.0005
    text = render(explain(closed), width=120, verbose=True)
    assert "ompare" not in text
    assert "no faster plan exists" in text
    assert "only a larger budget makes it faster" in text
    assert "--work" not in text
    open_gap = render(explain(record()), width=120, verbose=True)
    assert "--work" in open_gap


def test_a_plan_that_needs_more_than_its_budget_says_so_first() -> None:
    over = msgspec.structs.replace(record(), budget_B=30 * MiB)
    label, text = answer(headline(over))[0]
    assert label == "does not fit"
    assert "8.00 MiB too many" in text
    assert "raise the budget to 38.0 MiB" in answer(headline(over))[4][1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"time_s": 0.016, "keep_all_time_s": 0.016}, "a smaller budget may do, no plan needs less than 31.0 MiB"),
        ({}, "search longer"),
    ],
)
def test_what_to_do_next(change: dict[str, float], told: str) -> None:
    assert told in answer(headline(msgspec.structs.replace(record(), **change)))[4][1]


def test_an_interrupted_plan_says_how_to_go_on() -> None:
    assert "interrupted" in answer(headline(record(Status.INTERRUPTED)))[4][1]
