"""The compiled engine against the one in Python, on a recorded step: every number of a replay but the seconds."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.dynamic.compiled_replay import compiled_replay
from lowtide.dynamic.policies.catalogue import POLICIES
from lowtide.dynamic.replay import PUBLISHED, Rules, replay
from tests.dynamic import tapes

RULES = {"addresses": Rules(), "published": PUBLISHED}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
def test_a_replay_is_the_same_in_both_engines(rules: Rules) -> None:
    tape = tapes.published("unet", in_place=rules.in_place)
    for name, policy in POLICIES.items():
        read = replay(tape, policy(), tape.peak_B // 2, rules)
        compiled = compiled_replay(tape, name, tape.peak_B // 2, rules)
        assert msgspec.structs.replace(read, search_s=0.0) == msgspec.structs.replace(compiled, search_s=0.0)
        assert read.searches
