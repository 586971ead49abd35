"""What every policy owes: one list, all policies. A new policy is tested by its line in the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.eager_engine.replay import ReplayResult, Rules, compiled_replay
from lowtide.ir.tape import Tape
from tests.eager_engine import tapes
from tests.oracle.eviction_manager import refusal
from tests.oracle.ledger import Call, Value
from tests.oracle.policies.base import AbstractPolicy, Scene
from tests.oracle.policies.catalogue import POLICIES
from tests.oracle.replay import replay

every_policy = pytest.mark.parametrize("name", POLICIES)
_SPARED_B = {"dte": 2**20}  # values below are never evicted
SEEDS = st.integers(0, 2**32)
SHARES = st.floats(0.05, 1.2)


def watched(name: str) -> type[AbstractPolicy]:
    """A policy whose choices are looked at as they are made."""

    class Watched(POLICIES[name]):  # type: ignore[misc]
        spared: Sequence[Value] = ()  # what could have been evicted when nothing was chosen

        def choose(self, scene: Scene, need_B: int) -> Sequence[Value]:
            in_order(scene)
            chosen = super().choose(scene, need_B)
            assert len({value.id for value in chosen}) == len(chosen)
            for value in chosen:
                assert scene.ledger.evictable.get(value.id) is value
                assert value.resident
                assert value.pins == 0
                assert value.call is not None
            if not chosen:
                self.spared = [value for value in scene.ledger.evictable.values() if value.size_B]
            return chosen

        def ended(self, scene: Scene, call: Call) -> None:
            in_order(scene)
            super().ended(scene, call)

    return Watched


def in_order(scene: Scene) -> None:
    """What is resident is allocated, within the budget; evictable is what may be."""
    held = [value for value in scene.ledger.values.values() if value.resident and not value.is_view]
    assert sum(scene.capacity.reserved_B(value.size_B) for value in held if value.size_B) <= scene.capacity.in_use_B
    assert scene.capacity.in_use_B <= scene.capacity.capacity_B
    evictable = {value.id for value in held if not value.pins and value.call is not None}
    assert set(scene.ledger.evictable) == evictable


def play(name: str, tape: Tape, share: float, rules: Rules) -> ReplayResult:
    """A replay; where it is refused, what cannot be evicted and the request exceed the budget, or holes do not meet."""
    budget_B = max(64, int(tape.peak_B * share))
    policy = watched(name)()
    with patch("tests.oracle.eviction_manager.refusal", side_effect=refusal) as refused:
        result = replay(tape, policy, budget_B, rules)
    assert result.peak_B <= budget_B
    if result.refused and "out of memory" in result.refused:
        need_B, capacity_B, in_use_B, _ = refused.call_args.args
        slides = policy.slides or policy.slides_at_last
        if rules.accounting == "bytes" or slides:
            assert in_use_B + need_B > capacity_B // 512 * 512
        if rules.accounting == "bytes" or policy.slides:
            assert all(value.size_B <= _SPARED_B.get(name, 0) for value in policy.spared)
    return result


@every_policy
@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, share=SHARES, in_place=st.booleans(), forgets=st.booleans())
def test_in_bytes_only_a_full_capacity_refuses(
    name: str, seed: int, share: float, in_place: bool, forgets: bool
) -> None:
    rules = Rules(accounting="bytes", in_place=in_place, forgets=forgets, limit=50.0)
    play(name, tapes.at_random(seed, in_place=in_place), share, rules)


@every_policy
@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, share=SHARES, in_place=st.booleans())
def test_among_addresses_choices_are_legal(name: str, seed: int, share: float, in_place: bool) -> None:
    rules = Rules(in_place=in_place, alignment_B=512, limit=50.0)
    play(name, tapes.at_random(seed, in_place=in_place), share, rules)


@every_policy
@settings(max_examples=6, deadline=None)
@given(seed=SEEDS, share=SHARES, in_place=st.booleans())
def test_the_compiled_twin_decides_alike(name: str, seed: int, share: float, in_place: bool) -> None:
    """So the decisions are deterministic, too."""
    rules = Rules(in_place=in_place, limit=50.0)
    tape = tapes.at_random(seed, 60, in_place=in_place)
    budget_B = max(64, int(tape.peak_B * share))
    read = replay(tape, POLICIES[name](), budget_B, rules)
    compiled = compiled_replay(tape, name, budget_B, rules)
    assert (read.digest, read.refused, read.overhead) == (compiled.digest, compiled.refused, compiled.overhead)
    assert (read.peak_B, read.moved_B, read.evicted_B) == (compiled.peak_B, compiled.moved_B, compiled.evicted_B)


@every_policy
def test_equal_runs_decide_equally(name: str) -> None:
    tape = tapes.at_random(5, 80)
    first, second = (replay(tape, POLICIES[name](), tape.peak_B // 2) for _ in range(2))
    assert first.digest == second.digest


@every_policy
def test_what_fits_is_left_alone(name: str) -> None:
    tape = tapes.chain(12)
    result = replay(tape, POLICIES[name](), 2 * tape.peak_B)
    assert (result.refused, result.evictions, result.overhead) == (None, 0, 1.0)


@every_policy
def test_a_chain_fits_in_half_of_its_bytes(name: str) -> None:
    tape = tapes.chain(24)
    result = replay(tape, POLICIES[name](), tape.peak_B // 2, Rules(limit=None))
    assert result.refused is None
    assert result.evictions > 0
    assert result.overhead > 1
