"""The engine against the oracle, on recorded steps: every number of a replay but the seconds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import lowtide
from lowtide import _core
from lowtide.device import shim
from lowtide.eager_engine.policy_names import COPYING, OFFLOADING, policy_names
from lowtide.eager_engine.replay import PUBLISHED, Rules, compiled_replay, compiled_tape
from lowtide.ir.tape import Ran, Tape, load_tape
from tests.eager_engine import tapes
from tests.eager_engine.networks import NETWORKS
from tests.oracle.policies.catalogue import POLICIES, policy_of
from tests.oracle.replay import replay

RULES = {"addresses": Rules(), "published": PUBLISHED}


def decide_alike(tape: Tape, name: str, budget_B: int, rules: Rules) -> int:
    """Returns: how often a policy had to choose, in both of them."""
    read = replay(tape, POLICIES[name](), budget_B, rules)
    compiled = compiled_replay(tape, name, budget_B, rules)
    assert msgspec.structs.replace(read, search_s=0.0) == msgspec.structs.replace(compiled, search_s=0.0)
    return read.searches


def test_both_have_the_same_policies() -> None:
    assert policy_names() == tuple(POLICIES)
    assert {name for name, kind in POLICIES.items() if not kind.in_place} == COPYING
    assert {name for name, kind in POLICIES.items() if kind.moves} == OFFLOADING


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
def test_a_replay_is_the_same_in_both(rules: Rules) -> None:
    tape = tapes.published("unet", in_place=rules.in_place)
    for name in POLICIES:
        assert decide_alike(tape, name, tape.peak_B // 2, rules)


@pytest.mark.parametrize("seed", range(6))
def test_workspaces_are_taken_alike(seed: int) -> None:
    tape = tapes.at_random(seed, calls=60)
    assert any(isinstance(event, Ran) and event.temps_B for event in tape.events)
    for name in POLICIES:
        decide_alike(tape, name, tape.peak_B * 2 // 3, Rules(limit=None))


@pytest.mark.skipif(not shim.available(), reason="no arena here")
@pytest.mark.parametrize("name", ["mlp", "resnet", "treelstm", "gan"])
def test_training_steps_are_replayed_alike(name: str, tmp_path: Path) -> None:
    """Two steps with their optimizers, as the engine under torch recorded them."""
    module, optimizers = NETWORKS[name].start()
    with lowtide.eager("1GiB", model=module, optimizer=optimizers, record=tmp_path / "steps.jsonl"):
        for batch in NETWORKS[name].batches(2):
            NETWORKS[name].step(module, optimizers, batch)
    tape = load_tape(tmp_path / "steps.jsonl")
    for policy in POLICIES:
        assert decide_alike(tape, policy, int(0.8 * tape.peak_B), Rules(limit=20.0))


@pytest.mark.parametrize("name", sorted(OFFLOADING))
@pytest.mark.parametrize("host_share", [0.1, 1.0])
def test_the_same_values_wait_on_the_host(name: str, host_share: float) -> None:
    tape = tapes.published("unet", in_place=True)
    budget_B, options = tape.peak_B // 2, {"host_B": int(host_share * tape.peak_B), "link_Bps": 50e9}
    read = replay(tape, policy_of(name, **options), budget_B, Rules(limit=None))
    compiled = _core.replay(compiled_tape(tape), name, budget_B, limit=0.0, **options)
    assert read.sent_B > 0
    assert (read.sent_B, read.fetched_B, read.recomputations) == (
        compiled.sent_B,
        compiled.fetched_B,
        compiled.recomputations,
    )
    assert read.digest == f"{compiled.digest:016x}"
