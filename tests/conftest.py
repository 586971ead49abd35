"""Settings for every test: property tests find the same examples every time, and no test looks at the clock."""

import gc
import logging
import os
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pytest
from hypothesis import HealthCheck, settings

from lowtide.placers import base

settings.register_profile(
    "lowtide",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=int(os.environ.get("LOWTIDE_EXAMPLES", "100")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lowtide")

# A suite started in the background of a shell inherits an ignored SIGINT; tests of Ctrl-C need Python's own handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Every test makes its plans itself; those of the plan cache turn it on.
os.environ.setdefault("LOWTIDE_PLAN_CACHE", "0")

# Tests that bring an empty cache still share one build of the arena.
os.environ.setdefault("LOWTIDE_SHIM_DIR", str(Path(platformdirs.user_cache_dir("lowtide")) / "shim"))


class _Unheard(logging.Logger):
    """Takes no handler."""

    def addHandler(self, hdlr: logging.Handler) -> None:
        """Does nothing."""


# pytest hangs its handlers on every logger that does not propagate. On this one torch then writes each graph and guard
# that it compiles as text, which is a twentieth of these tests' time and is read by nobody.
logging.setLoggerClass(_Unheard)
logging.getLogger("torch.__trace")
logging.setLoggerClass(logging.Logger)

# Compiling makes many objects that stay: collections that look for cycles every 700 of them find few.
gc.set_threshold(5_000, 20, 20)

# Files that take longest, longest first: what is begun last should be short, or one worker waits for the other.
_LONG = (
    "zoo/test_zoo.py",
    "planners/test_contract.py",  # needs no arena while the first worker builds it
    "ops/test_contract.py",
    "docs/test_code.py",
    "api/test_train_step_around.py",
    "api/test_verify.py",
    "ir/test_properties.py",
    "planners/test_joint.py",
    "runtime/test_routines.py",
    "api/test_hard_budget.py",
    "api/test_equality.py",
    "api/test_train_step.py",
    "planners/test_frontier.py",
    "semantics/test_randomness.py",
    "api/test_plan_cache.py",
    "api/test_distributed.py",
    "planners/test_checkmate.py",
    "planners/test_pool.py",
    "device/test_shim.py",
    "test_examples.py",
    "docs/test_build.py",
    "semantics/test_precision.py",
    "api/test_gradient_order.py",
    "api/test_max_batch.py",
    "api/test_train_step_verified.py",
    "api/test_named_budgets.py",
    "semantics/test_normalisation.py",
    "semantics/test_numerics.py",
    "semantics/test_loops.py",
    "api/test_fits.py",
    "api/test_windows.py",
    "api/test_errors.py",
)
_RANK = {str(Path(__file__).parent / name): rank for rank, name in enumerate(_LONG)}


# Of these, whose parameters are many and alike, `make test` takes so many, spread evenly; `make test-all` takes all.
_SAMPLED = {
    "test_training_is_unchanged_with_room_and_without": 7,
    "test_no_schedule_of_any_choice_lives_in_less_than_the_floor": 5,
    "test_no_schedule_of_any_choice_beats_a_cut": 6,
    "test_unused_outputs_give_no_gradient": 5,
    "test_a_change_after_the_first_call": 5,
    "test_draws_that_nothing_uses_move_the_generator": 2,
    "test_weights_that_a_division_and_a_product_round_apart": 1,
    "test_two_threads_step_one_model_at_once": 1,
    "test_the_first_step_of_every_shape_is_verified": 2,
    "test_buffers_move_as_often_as_in_plain_pytorch": 4,
    "test_bits_and_bytes": 3,
    "test_scales_that_are_zero_from_the_start_are_left_alone": 3,
    "test_scales_that_fade_are_followed_as_far_as_there_is_room": 1,
    "test_a_forward_without_backward_keeps_nothing_alive": 4,
    "test_training_is_unchanged": 3,
    "test_normalised_weights": 2,
    "test_a_file_that_cannot_be_used_is_removed_with_one_line": 5,
    "test_a_hook_after_the_first_call": 4,
    "test_a_hook_from_the_beginning": 4,
    "test_the_traces_are_what_happens": 5,
    "test_every_step_another_plan": 2,
    "test_accumulation_evaluation_exception": 3,
    "test_retained_graph": 2,
    "test_a_model_that_nobody_names_is_gone_with_its_arena": 2,
    "test_every_branch_is_the_one_that_eager_takes": 1,
    "test_a_compiler_that_makes_nothing_is_none": 1,
    "test_clipping_and_accumulation": 1,
    "test_accumulation_with_evaluation_in_between": 1,
    "test_what_is_planned_in_a_backward_is_verified_at_its_end": 1,
    "test_clipped_gradients": 2,
    "test_several_forwards_before_their_backwards": 2,
    "test_an_exception_in_mid_transfer_lets_copies_end": 2,
    "test_a_marked_model_is_captured_as_the_unmarked_one": 2,
    "test_checkpoints_of_ones_own": 2,
    "test_revolve_reruns_as_often_as_the_formula_says": 2,
    "test_rotor_is_no_slower_than_revolve_and_near_the_optimum_on_chains": 2,
    "test_gradients_are_those_of_plain": 9,
    "test_training_is_unchanged_at_every_budget": 5,
    "test_no_plan_of_a_tiny_graph_is_faster_than_the_bound": 12,
    "test_every_problem_loads_and_says_its_machine": 8,
    "test_kernel_oracle_and_simulator_agree": 32,
    "test_reading_back_is_the_inverse_of_lifting": 18,
    "test_a_plan_serves_another_size_of_its_program_at_once": 15,
    "test_bounds_hold_against_the_true_optimum": 9,
    "test_runs_give_the_same_bits": 8,
    "test_gradients_one_by_one_are_the_same_and_the_input_is_not_read_for_its_own": 7,
    "test_needs_are_what_the_allocator_sees": 12,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; otherwise as they come. What is left out of a sample is marked as breadth."""
    items.sort(key=lambda item: _RANK.get(str(item.path), len(_LONG)))
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        name = getattr(item, "originalname", item.name)
        if name in _SAMPLED and item.get_closest_marker("breadth") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in cases.values():
        count = _SAMPLED[getattr(found[0], "originalname", "")]
        kept = {len(found) * i // count for i in range(count)}
        for index, item in enumerate(found):
            if index not in kept:
                item.add_marker("breadth")


_LEFT = [0]  # levels that no collection ended
_IMPORTED = [0]  # modules, when the heap was frozen last


def pytest_runtest_setup(item: pytest.Item) -> None:  # noqa: ARG001
    """What imports brought stays, so that a collection need not look through it: tests and fits call for many."""
    shim = sys.modules.get("lowtide.device.shim")
    module = shim.loaded() if shim is not None else None
    if (
        module is not None and module.levels() > _LEFT[0]
    ):  # a step that nobody ends lives in a cycle, which may be frozen
        gc.unfreeze()
        gc.collect()
        _IMPORTED[0] = 0
        _LEFT[0] = module.levels()
    elif len(sys.modules) > _IMPORTED[0] + 100:
        gc.collect()
        gc.freeze()
        _IMPORTED[0] = len(sys.modules)


_NO_STACKS = types.SimpleNamespace(format_stack=list)


@pytest.fixture(autouse=True)
def _brief_searches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tests train, searches are brief."""
    if {"api", "runtime", "semantics"}.intersection(request.path.parts):
        search_briefly(monkeypatch)


def search_briefly(patch: pytest.MonkeyPatch) -> None:
    """Addresses are searched for a twelfth of a second, not for one."""
    patch.setattr(base, "_WORK", 100_000)


@pytest.fixture(autouse=True)
def _no_text_of_compiling() -> None:
    """Every compilation writes its graphs as text and times its guards on emptied caches, for logs that nobody reads.

    And where no such device was used yet, every `torch.manual_seed` keeps the stack it was called from for each.
    """
    guards = sys.modules.get("torch._dynamo.guards")
    if guards is not None:
        guards.profile_guard_manager = lambda *_: 0.0
    graphs = sys.modules.get("torch._functorch._aot_autograd.graph_compile")
    if graphs is not None:
        graphs._log_joint_graph = lambda *_: None
        graphs._log_fw_bw_graphs = lambda *_: (None, None)
    for name in ("torch.cuda", "torch.mtia", "torch.xpu"):
        if name in sys.modules:
            sys.modules[name].traceback = _NO_STACKS


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for what any test of this run measures: of all workers together, and never the user's own."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "measured"


@pytest.fixture(autouse=True, scope="session")
def _shared_cache(measured: Path) -> Iterator[None]:
    """The user's own cache is not read either: one that has grown takes longer to read than most tests take."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOWTIDE_CACHE_DIR", str(measured))
        yield
