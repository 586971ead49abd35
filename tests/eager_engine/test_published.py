"""DTR's published simulator table, reproduced: bytes without addresses, copies, views recomputed, nothing forgotten."""

from __future__ import annotations

import pytest
from benchmarks.eager.dtr_figures import POLICIES as ROWS
from benchmarks.eager.dtr_figures import RATIOS, published
from benchmarks.eager.published import MEMORY, TIME, differs

from lowtide.eager_engine.replay import PUBLISHED, ReplayResult, compiled_replay, compiled_tape
from tests.eager_engine import tapes
from tests.oracle.policies.catalogue import POLICIES
from tests.oracle.replay import replay


def _cell(result: ReplayResult) -> float | str:
    if result.refused is None:
        return result.overhead
    return MEMORY if result.refused.startswith("out of memory") else TIME


@pytest.mark.parametrize("policy", ROWS)
@pytest.mark.parametrize("trace", ["unet", "resnet32", "densenet121", "transformer"])
def test_every_cell_of_a_row_is_the_published_one(trace: str, policy: str) -> None:
    tape = tapes.published(trace, in_place=False)
    compiled = compiled_tape(tape)
    theirs = published(trace, policy)
    for ratio, cell in zip(RATIOS, theirs, strict=False):
        ours = _cell(compiled_replay(tape, policy, int(tape.peak_B * ratio), PUBLISHED, compiled=compiled))
        assert not differs(ours, cell), (ratio, ours, cell)


@pytest.mark.parametrize("policy", ROWS)
def test_the_readable_engine_decides_the_same(policy: str) -> None:
    tape = tapes.published("unet", in_place=False)
    budget_B = int(tape.peak_B * 0.5)
    ours = replay(tape, POLICIES[policy](), budget_B, PUBLISHED)
    assert ours.digest == compiled_replay(tape, policy, budget_B, PUBLISHED).digest
