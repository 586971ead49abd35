"""The compiled engine against the one in Python, on a recorded step: every number of a replay but the seconds."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.eager_engine.compiled_replay import compiled_replay
from lowtide.eager_engine.policies.catalogue import POLICIES
from lowtide.eager_engine.replay import PUBLISHED, Rules, replay
from lowtide.eager_engine.tape import Ran
from tests.eager_engine import tapes

RULES = {"addresses": Rules(), "published": PUBLISHED}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
def test_a_replay_is_the_same_in_both_engines(rules: Rules) -> None:
    tape = tapes.published("unet", in_place=rules.in_place)
    for name, policy in POLICIES.items():
        read = replay(tape, policy(), tape.peak_B // 2, rules)
        compiled = compiled_replay(tape, name, tape.peak_B // 2, rules)
        assert msgspec.structs.replace(read, search_s=0.0) == msgspec.structs.replace(compiled, search_s=0.0)
        assert read.searches


@pytest.mark.parametrize("seed", range(6))
def test_workspaces_are_taken_alike(seed: int) -> None:
    tape = tapes.at_random(seed, calls=60)
    assert any(isinstance(event, Ran) and event.temps_B for event in tape.events)
    for name, policy in POLICIES.items():
        read = replay(tape, policy(), tape.peak_B * 2 // 3, Rules(limit=None))
        compiled = compiled_replay(tape, name, tape.peak_B * 2 // 3, Rules(limit=None))
        assert msgspec.structs.replace(read, search_s=0.0) == msgspec.structs.replace(compiled, search_s=0.0)
