"""Both readings of a trace: contents at their places, or copies and views as DTR's simulator has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.errors import PlanFileError
from lowtide.ir.tape import Died, Leaf, Ran, Tape, load_tape
from tests.eager_engine import tapes
from tests.ir.traces import Eager, network, random_program


def test_in_place_a_storage_keeps_its_names() -> None:
    tape = tapes.of(network())
    assert tape.events == (
        Leaf(100),
        Leaf(50),
        Ran("matmul", (2, 1), (40,), 3000),
        Ran("view", (), (), 1),
        Ran("relu_", (3,), (40,), 2000, consumes=((0, 0),)),
        Ran("sum", (4,), (4,), 1000),  # through the view
        Ran("ones_like", (5,), (4,), 500),
        Ran("backward", (6, 4, 2), (100, 0), 4000),
        Died(8),
        Died(6),
        Died(4),
        Died(5),
    )
    assert tape.kept == (1, 2, 7)
    assert (tape.time_ns, tape.peak_B) == (10501, 100 + 50 + 40 + 4 + 4 + 100)


def test_by_the_simulators_rules_writes_copy_and_views_are_made() -> None:
    tape = tapes.of(network(), in_place=False)
    assert tape.events[2:6] == (
        Ran("matmul", (2, 1), (40,), 3000),
        Ran("view", (3,), (0,), 1, views=((0, 3),)),
        Ran("relu_", (3,), (40,), 2000),
        Ran("sum", (4,), (4,), 1000),  # of the view of the old content
    )
    assert tape.kept == (1, 2, 8)
    assert Died(3) in tape.events  # when its view is released
    assert tape.peak_B == 100 + 50 + 40 + 40 + 4 + 4 + 100


def test_writing_to_a_leaf_gives_its_names_a_new_content() -> None:
    eager = Eager()
    eager.constant("w", 8)
    eager.copy("w", "same")
    eager.mutate("add_", ["w"], [0])
    eager.call("f", ["same"], [("y", 4)])
    assert tapes.of(eager).events[1:] == (
        Ran("add_", (1,), (8,), 1000, consumes=((0, 0),)),
        Ran("f", (2,), (4,), 1000),
    )
    assert tapes.of(eager, in_place=False).events[1:] == (
        Ran("add_", (1,), (8,), 1000),
        Ran("f", (1,), (4,), 1000),  # the copy of the name means the old content
    )


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), in_place=st.booleans())
def test_a_tape_has_what_the_program_held(seed: int, in_place: bool) -> None:
    program = random_program(seed)
    tape = tapes.of(program, in_place=in_place)
    live = _live_B(tape)
    if in_place:
        assert live[-1] == program.live_B
    assert tape.peak_B == max(live)
    assert len(set(tape.kept)) == len(tape.kept)


def _live_B(tape: Tape) -> list[int]:
    """Bytes of contents that have names, after every event; numbers are given here anew."""
    sizes_B: dict[int, int] = {}
    live: list[int] = []
    number = 0
    for event in tape.events:
        match event:
            case Leaf(size_B):
                number += 1
                sizes_B[number] = size_B
            case Ran():
                for source, _ in event.consumes:
                    sizes_B[event.inputs[source]] = 0
                for size_B in event.sizes_B:
                    number += 1
                    sizes_B[number] = size_B
            case Died(gone):
                sizes_B[gone] = 0
        live.append(sum(sizes_B.values()))
    return live


@pytest.mark.parametrize("in_place", [True, False])
def test_damage_is_named_with_its_line(in_place: bool, tmp_path: Path) -> None:
    path = tmp_path / "net.jsonl"
    text = network().text
    for damaged, words in (
        (text.replace('"RELEASE", "NAME": "y"', '"RELEASE", "NAME": "z"'), "line 29: z is not there"),
        (text.replace('"MUTATE": [0]', '"MUTATE": [3]'), r"line 12: relu_ changes arguments \(3,\) of 1"),
        (text.replace('"NAME": "x"}', '"NAME": "w"}', 1), "is damaged at line 4"),
        ("", "no START"),
    ):
        path.write_text(damaged)
        with pytest.raises(PlanFileError, match=words):
            load_tape(path, in_place=in_place)
