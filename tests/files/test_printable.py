"""What files say reaches a terminal as text, and a browser as text."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from lowtide.cli.main import app
from lowtide.errors import PlanFileError
from lowtide.ir.graph import Origin
from lowtide.ir.plan import PlanRecord
from lowtide.ir.text import dumps, load_plan, loads
from lowtide.printable import printable
from lowtide.report.explain import explain, render
from lowtide.report.html import html_of
from lowtide.report.memory_picture import write_memory
from tests.files.formats import FORMATS, plan_bytes
from tests.files.mutations import ESCAPES, MARKUP

NAME = f"{MARKUP}{ESCAPES}\n$\\frac{{"


def _is_clean(text: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in text)


def test_printable_keeps_what_people_write() -> None:
    text = "größe\t\u00a0ϕ 🌊\n\u3000x"
    assert printable(text) == text
    assert printable("a\x1b[31mb\x07\u202ec\x85\u2028\x7f\ud800") == "a�[31mb�" + "�c" + "����"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A legal plan whose every name is made to do harm."""
    record = loads(plan_bytes(), PlanRecord)
    graph = record.graph
    origin = Origin(NAME, NAME, NAME)
    graph = msgspec.structs.replace(
        graph,
        name=NAME,
        values=tuple(msgspec.structs.replace(v, name=NAME) for v in graph.values),
        recipes=tuple(msgspec.structs.replace(r, op=f"{r.op}{NAME}", origin=origin) for r in graph.recipes),
        segments=tuple(msgspec.structs.replace(s, name=NAME) for s in graph.segments),
    )
    record = msgspec.structs.replace(record, graph=graph, begun_from=NAME, covers=type(record.covers)((NAME,), (NAME,)))
    path = tmp_path / "plan.json"
    path.write_text(dumps(record))
    return path


def test_names_of_a_plan_are_text_everywhere(hostile: Path, tmp_path: Path) -> None:
    record = load_plan(hostile)
    assert _is_clean(render(explain(record), verbose=True))
    page = html_of(record)
    assert _is_clean(page)
    assert "<script>alert" not in page
    assert "\\u001b" not in page
    write_memory(record, tmp_path / "memory.svg")
    picture = (tmp_path / "memory.svg").read_text(encoding="utf-8")
    assert _is_clean(picture)
    assert "<script>alert" not in picture
    result = CliRunner().invoke(app, ["explain", str(hostile), "--html", str(tmp_path / "page.html")])
    assert result.exit_code == 0
    assert _is_clean(result.output)
    assert "alert(1)" in result.output


def test_errors_name_things_as_text(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}, {"INSTRUCTION": "RELEASE", "NAME": ESCAPES}]
    path.write_text("\n".join(map(json.dumps, lines)))
    for command in ("replay", "plan"):
        result = CliRunner().invoke(app, [command, str(path), "--budget", "50% of plain"])
        assert result.exit_code == 2
        assert _is_clean(result.output)
    with pytest.raises(PlanFileError) as caught:
        load_plan(tmp_path / f"no{ESCAPES[:-1]}such")
    assert _is_clean(str(caught.value))


def test_a_frontier_s_names_are_text(tmp_path: Path) -> None:
    tree = json.loads(FORMATS["frontier"].good())
    tree["body"]["name"] = tree["body"]["planner"] = tree["body"]["stopped"] = NAME
    tree["body"]["baselines"][0]["name"] = NAME
    path = tmp_path / "frontier.json"
    path.write_text(json.dumps(tree))
    FORMATS["frontier"].use(path)
