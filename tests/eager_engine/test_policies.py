"""What each policy is for, on programs made for it, and on recorded ones."""

from collections.abc import Sequence

import msgspec
import pytest

import lowtide
from lowtide import _core
from lowtide.eager_engine.replay import ReplayResult, Rules, compiled_replay, compiled_tape
from lowtide.ir.tape import Died, Event, Leaf, Ran, Tape
from tests.eager_engine import tapes
from tests.eager_engine.networks import NETWORKS
from tests.oracle.eviction_manager import OutOfCapacity
from tests.oracle.ledger import Call, Value
from tests.oracle.policies.base import Scene
from tests.oracle.policies.catalogue import POLICIES
from tests.oracle.policies.tide import Tide, is_idle
from tests.oracle.policies.tide_memory import TideMemory
from tests.oracle.replay import _Player, replay
from tests.oracle.step_record import Step, StepRecord

_MiB = 2**20
_RULES = Rules(limit=None)


def tape_of(*events: Event, kept: Sequence[int] = ()) -> Tape:
    """A tape without a file; its peak is what all of it takes at once."""
    size_B = sum(
        event.size_B if isinstance(event, Leaf) else sum(event.sizes_B)
        for event in events
        if not isinstance(event, Died)
    )
    time_ns = sum(event.cost_ns for event in events if isinstance(event, Ran))
    return Tape("made", "made", True, events, tuple(kept), time_ns, size_B)


def made(size_MiB: int, cost_ns: int, *inputs: int, name: str = "op") -> Ran:
    return Ran(name, inputs, (size_MiB * _MiB,), cost_ns)


def forward_and_back(layers: int, back: bool = True) -> Tape:
    """A chain, and gradients that read its values from the last to the first."""
    events: list[Event] = [Leaf(_MiB)]
    events += [made(1, 1000 + 10 * i, i + 1) for i in range(layers)]
    gradient = layers + 1
    for i in range(layers if back else 0):
        events += [made(1, 2000, layers + 1 - i, gradient, name="back"), Died(layers + 1 - i)]
        if gradient > layers + 1:
            events.append(Died(gradient))
        gradient = layers + 2 + i
    return tape_of(*events, kept=(gradient,))


def run(name: str, tape: Tape, share: float) -> ReplayResult:
    result = compiled_replay(tape, name, int(tape.peak_B * share), _RULES)
    assert result.refused is None, result.refused
    return result


@pytest.fixture(scope="module")
def unet() -> Tape:
    return tapes.published("unet", in_place=True)


def test_a_window_frees_bytes_that_meet() -> None:
    """Every other value is cheap: single victims leave holes of half the size that is asked for."""
    events: list[Event] = [Leaf(64)]
    events += [made(4, 10_000 if i % 2 else 100, 1) for i in range(8)]
    tape = tape_of(*events, made(8, 100, 1), *(made(1, 1, i) for i in range(2, 10)))
    budget_B = 33 * _MiB
    windows, single = (replay(tape, POLICIES[name](), budget_B, _RULES) for name in ("coop", "coop-no-windows"))
    assert windows.evictions < single.evictions or windows.recompute_ns < single.recompute_ns


def test_dear_and_cheap_calls_grow_from_opposite_ends() -> None:
    player = _Player(tape_of(made(2, 10), made(2, 1_000_000), made(2, 10)), POLICIES["coop"](), 16 * _MiB, _RULES)
    assert player.play() is None
    cheap, dear, again = (value.offset_B for value in player.values)
    assert dear is not None
    assert again is not None
    assert cheap == 0
    assert dear < 8 * _MiB < again


def test_dte_prefers_what_lies_next_to_a_hole() -> None:
    events: list[Event] = [
        Leaf(64),
        *(made(4, 1, 1) for _ in range(3)),
        made(6, 1, 1),
    ]  # 4 of 16 MiB are free, next to the third
    player = _Player(tape_of(*events), POLICIES["dte"](), 16 * _MiB + 4096, _RULES)
    assert player.play() is None
    assert [value.resident for value in player.values[1:]] == [True, True, False, True]


def test_what_nobody_wants_is_idle() -> None:
    player = _Player(tape_of(Leaf(64), made(1, 1, 1), made(1, 1, 2)), Tide(), 8 * _MiB, _RULES)
    assert player.play() is None
    _, parent, child = player.values
    assert not is_idle(parent)  # it has a handle
    parent.alive = False
    assert is_idle(parent)
    player.manager.evict(child)
    assert not is_idle(parent)  # the child would need it


def test_what_only_a_bridge_to_a_resident_value_would_need_is_idle() -> None:
    """Scratch of a recovery that has reached its end is worth nothing, though what was made of it has gone."""
    player = _Player(tape_of(Leaf(64), made(1, 1, 1), made(1, 1, 2), made(1, 1, 3)), Tide(), 8 * _MiB, _RULES)
    assert player.play() is None
    _, first, bridge, last = player.values
    first.alive = bridge.alive = False
    player.manager.evict(bridge)
    assert is_idle(first)
    player.manager.evict(last)
    assert not is_idle(first)  # the last would need it, through the bridge


@pytest.mark.parametrize(("link_Bps", "goes"), [(1e15, True), (1.0, False)])
def test_values_go_to_the_host_where_that_is_quicker(link_Bps: float, goes: bool) -> None:
    tape = forward_and_back(12)
    result = replay(tape, Tide(2**40, link_Bps), int(tape.peak_B * 0.5), _RULES)
    assert result.refused is None
    assert (result.sent_B > 0) == goes
    assert (result.fetched_B > 0) == goes
    assert (result.recomputations == 0) == goes
    assert replay(tape, Tide(0, link_Bps), int(tape.peak_B * 0.5), _RULES).sent_B == 0


@pytest.mark.parametrize(("share", "of_coop"), [(0.7, 1), (0.5, 0.8)])
def test_tide_recomputes_less_than_coop_and_with_memory_less_again(unet: Tape, share: float, of_coop: float) -> None:
    coop, tide, memory = (run(name, unet, share).recompute_ns for name in ("coop", "tide", "tide-memory"))
    assert tide <= coop
    assert memory <= tide
    assert memory <= of_coop * coop


def test_small_moves_only(unet: Tape) -> None:
    assert run("tide", unet, 0.6).moved_B < unet.peak_B


def test_a_record_is_the_tape_again(unet: Tape) -> None:
    record = StepRecord()

    class Recording(Tide):  # type: ignore[misc]
        def ended(self, scene: Scene, call: Call) -> None:  # noqa: ARG002
            record.ended(call, 0)

        def died(self, scene: Scene, value: Value) -> None:  # noqa: ARG002
            record.died(value)

    player = _Player(unet, Recording(), 2 * unet.peak_B, _RULES)
    assert player.play() is None
    step = record.take(player.manager.capacity)
    again = _core.replay(step.tape, "tide", 2 * unet.peak_B)
    assert again.evictions == 0
    assert again.peak_B <= player.manager.capacity.peak_B
    assert step.tape.time_ns <= unet.time_ns


def test_after_a_step_that_departs_the_record_is_doubted_once() -> None:
    policy = TideMemory()
    long, short = forward_and_back(12), forward_and_back(12, back=False)
    budget_B = int(long.peak_B * 0.5)
    player = _Player(long, policy, budget_B, _RULES)
    assert player.play() is None  # two steps alike
    player.manager.step_ended()
    assert policy.divergences == 0
    for tape, doubted in ((short, False), (short, True), (short, False)):
        player.tape = tape
        player._leave()
        assert policy.doubted == doubted  # one that departed; then two alike, of which the last was rehearsed
        assert player._pass() is None


def test_after_a_step_that_departed_the_next_one_goes_on_as_tide() -> None:
    asked: list[bool] = []  # of what is minded otherwise than by tide

    class Watched(TideMemory):  # type: ignore[misc]
        def mind(self, scene: Scene, value: Value) -> float:
            found = super().mind(scene, value)
            asked.append(found != (0.0 if is_idle(value) else self.unguided(scene, value)))
            return found

    policy = Watched()
    long, short = forward_and_back(24), forward_and_back(24, back=False)
    player = _Player(long, policy, int(long.peak_B * 0.35), _RULES)
    assert player.play() is None
    for tape, guided in ((short, True), (long, False), (long, True)):
        player._leave()
        player.tape = tape
        asked.clear()
        assert player._pass() is None
        assert any(asked) == guided


def test_rehearsals_choose_the_candidate_that_spends_least() -> None:
    tape = forward_and_back(24)
    budget_B = int(tape.peak_B * 0.35)
    found = _core.rehearse(compiled_tape(tape), budget_B)
    assert 0 <= found.spent_ns[0] < found.unguided_ns
    assert found.spent_ns == sorted(found.spent_ns)
    assert _core.rehearse(compiled_tape(tape), 2 * tape.peak_B).candidates == 0  # nothing to choose
    assert found.find(-1, [], 1) == 0


def test_rehearsals_take_no_longer_than_what_they_could_save() -> None:
    """The same long step, once of calls that cost next to nothing, once of dear ones."""
    cheap = forward_and_back(700)
    dear = [e if not isinstance(e, Ran) else msgspec.structs.replace(e, cost_ns=e.cost_ns * 1000) for e in cheap.events]
    tapes = (cheap, tape_of(*dear, kept=cheap.kept))
    candidates = [_core.rehearse(compiled_tape(tape), int(tape.peak_B * 0.2)).candidates for tape in tapes]
    assert candidates[0] < candidates[1]


def recorded(tape: Tape, budget_B: int) -> tuple[Step, int]:
    """The record of a step under tide, and what that spent on recomputations."""
    record = StepRecord()

    class Recording(Tide):  # type: ignore[misc]
        def ended(self, scene: Scene, call: Call) -> None:
            super().ended(scene, call)
            record.ended(call, 0)

        def used(self, scene: Scene, name: str, inputs: Sequence[Value], cost_ns: int) -> None:  # noqa: ARG002
            record.used(inputs, 0, cost_ns)

        def settled(self, scene: Scene, value: Value) -> None:  # noqa: ARG002
            record.settled(value)

        def died(self, scene: Scene, value: Value) -> None:  # noqa: ARG002
            record.died(value)

    player = _Player(tape, Recording(), budget_B, _RULES)
    assert player.play() is None
    return record.take(player.manager.capacity), player.manager.statistics.recompute_ns


def test_rehearsals_know_what_is_kept_from_a_write_on() -> None:
    """A parameter is written to: what was made of it is kept, and everything after that has fewer bytes."""
    write = Ran("write_", (1,), (_MiB,), 10, consumes=((0, 0),))
    tape = tape_of(Leaf(_MiB), made(2, 10, 1), write, made(2, 1000, 3), made(2, 1000, 3), Died(5), kept=(2, 4))
    step, _ = recorded(tape, 12 * _MiB)
    found = _core.rehearse(step.tape, 5 * _MiB + 2**16)
    assert found.unguided_ns == 1000  # the cheap one would have been evicted, were it not for the write


def test_rehearsals_know_what_is_read_by_calls_that_make_nothing() -> None:
    """What goes meanwhile is recomputed for such a call, as in the step itself."""
    read = Ran("write_", (1, 3), (_MiB,), 10, consumes=((0, 0),))
    tape = tape_of(Leaf(_MiB), Leaf(_MiB), made(2, 1000, 2), made(4, 10, 2), Died(4), read, kept=(3,))
    step, spent_ns = recorded(tape, 7 * _MiB)
    assert spent_ns == 1000
    assert _core.rehearse(step.tape, 7 * _MiB).unguided_ns == 1000


@pytest.mark.parametrize(("trace", "share"), [("recorded/gan", 0.4), ("unseen/gan-5", 0.6), ("unseen/messages", 0.9)])
def test_the_default_is_never_far_behind_tide(trace: str, share: float) -> None:
    """Guidance that did not know of late reads dropped what the whole step had to be recomputed for."""
    tape = tapes.published(trace, in_place=True)
    tide, memory = (run(name, tape, share).overhead for name in ("tide", "tide-memory"))
    assert memory <= 1.01 * tide


def test_a_candidate_that_spends_more_than_was_foreseen_is_dropped() -> None:
    """The rehearsal says too little of one candidate: it is followed once, and then what has spent least."""
    policy = TideMemory()
    tape = forward_and_back(24)
    player = _Player(tape, policy, int(tape.peak_B * 0.35), _RULES)
    assert player.play() is None
    flattered, honest = policy._choices[0], policy._followed
    assert honest is not None
    assert honest is not flattered
    player._leave()
    flattered.spent_ns, flattered.foreseen_ns = None, 0
    policy._follow_choice(flattered)
    for _ in range(2):
        assert player._pass() is None
        player._leave()
    assert policy._followed is honest
    assert flattered.spent_ns is not None
    assert honest.spent_ns is not None
    assert flattered.spent_ns > honest.spent_ns


def test_a_step_that_never_repeats_is_not_rehearsed() -> None:
    """Such programs go as by tide, from the first step on."""
    policy = TideMemory()
    player = _Player(forward_and_back(20), policy, int(forward_and_back(20).peak_B * 0.5), _RULES)
    for length in (21, 22, 23):
        assert player._pass() is None
        player._leave()
        assert policy.found is None
        player.tape = forward_and_back(length)


def test_batch_norms_do_not_depart_from_the_record() -> None:
    """They write to statistics that a recomputation does not read."""
    network = NETWORKS["resnet"]
    module, optimizers = network.start()
    with lowtide.eager(500_000, policy="tide-memory", model=module, optimizer=optimizers) as context:
        for batch in network.batches(4):
            network.step(module, optimizers, batch)
        assert context.stats().divergences == 0


def test_results_that_fence_each_other_are_given_one_hole() -> None:
    """The first one would lie between the free bytes, which suffice for both: blocks slide, and nothing goes."""
    values = [made(3, 10), made(4, 1000), made(2, 10), made(4, 1000), made(3, 10)]
    tape = tape_of(*values, Died(1), Died(3), Died(5), Ran("two", (), (2 * _MiB, 6 * _MiB), 10), kept=(2, 4))
    result = run("tide", tape, (16 + 1 / 4) * _MiB / tape.peak_B)
    assert result.evictions == 0
    assert result.moved_B > 0


@pytest.mark.parametrize("policy", ["tide", "tide-memory"])
def test_what_is_in_use_is_not_counted_on(policy: str) -> None:
    """A value is made for little of one that is dear, that an operator reads, for the last time as it turns out."""
    tape = tape_of(
        Leaf(_MiB), made(1, 100_000, 1), made(1, 100, 2), made(1, 300, 1), made(1, 10, 2), Died(2), Died(5),
        made(1, 10, 3), Died(6), made(1, 10, 4), kept=(7,),
    )  # fmt: skip
    assert replay(tape, POLICIES[policy](), 4 * _MiB + 2**16, _RULES).recompute_ns == 300


def test_nothing_goes_where_all_of_it_would_make_no_place() -> None:
    """It is refused at once: where a kernel is tried again in one hole, everything is still there."""
    fence = [made(3, 10), made(1, 10), made(2, 10), Leaf(2 * _MiB), made(3, 10)]
    player = _Player(tape_of(*fence), Tide(), 11 * _MiB + 2**17, _RULES)
    assert player.play() is None
    player.manager.scene.movable = lambda value: value.call is not None
    with pytest.raises(OutOfCapacity):
        player.manager.make_free(7 * _MiB)
    assert player.manager.statistics.evictions == 0
