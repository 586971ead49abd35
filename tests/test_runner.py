"""The benchmarks' runner: a function in a process of its own, what it said before a bad end, and its limits."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import Any

import pytest
from benchmarks import runner
from benchmarks.runner import HandOver, Limits, Process, answer_of, name_of, run


def _sum(*numbers: float) -> dict[str, Any]:
    sys.stdout.write("not an answer\n")
    return {"sum": sum(numbers), "process": os.getpid()}


def _count(hand_over: HandOver, most: int, ending: str) -> int:
    for number in range(most):
        hand_over({"number": number})
    if ending == "raise":
        raise ValueError("no further")
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if ending == "sleep":
        time.sleep(60)
    if ending == "compute":
        while True:
            pass
    if ending == "hold":
        held = bytearray(1 << 28)
        time.sleep(60)
        del held
    return most


def _surroundings() -> list[Any]:
    return [os.environ.get("LOWTIDE_TEST_OF_RUNNER"), sorted(os.sched_getaffinity(0))]


def _allocate(size_B: int) -> int:
    return len(bytearray(size_B))


def _count_forked(ending: str) -> dict[str, Any]:
    processes = [Process(_count, (most, ending), forked=True) for most in (1, 2)]
    left = list(processes)
    while left:
        left = [p for p in left if p not in select.select(left, [], [])[0] or p.pump()]
    found = [p.ended() for p in processes]
    return {"rows": [e.rows for e in found], "answers": [e.answer for e in found], "why": [e.failure for e in found]}


def test_the_answer_comes_from_another_process_and_prints_do_not_disturb_it() -> None:
    answer = answer_of(_sum, 1, 2.5)
    assert answer["sum"] == 3.5
    assert answer["process"] != os.getpid()


def test_rows_and_the_answer() -> None:
    ended = run(_count, 3, "return")
    assert ended.rows == [{"number": n} for n in range(3)]
    assert (ended.answer, ended.failure, ended.code) == (3, None, 0)
    assert ended.processor_s > 0
    assert ended.peak_B > 1 << 20


@pytest.mark.parametrize(
    ("ending", "limits", "why"),
    [
        ("raise", Limits(), "ValueError: no further"),
        ("kill", Limits(), "ended by SIGKILL"),
        ("sleep", Limits(elapsed_s=3), "over 3 s"),
        ("compute", Limits(processor_s=2), "more than 2 s of processor time"),
        ("hold", Limits(resident_B=1 << 27), "more than 0 GiB of memory"),
    ],
)
def test_rows_before_a_bad_end_stay_known(ending: str, limits: Limits, why: str) -> None:
    ended = run(_count, 2, ending, limits=limits)
    assert ended.rows == [{"number": 0}, {"number": 1}]
    assert (ended.answer, ended.failure) == (None, why)
    assert ended.code


def test_a_failure_is_told_with_what_was_printed() -> None:
    with pytest.raises(RuntimeError, match=r"_count.*ValueError: no further\n[\s\S]*Traceback"):
        answer_of(_count, 1, "raise")


def test_environment_and_core() -> None:
    core = max(os.sched_getaffinity(0))
    ended = run(_surroundings, limits=Limits(core=core), environment={"LOWTIDE_TEST_OF_RUNNER": "yes"})
    assert ended.answer == ["yes", [core]]


def test_a_limit_on_addresses_makes_allocations_fail() -> None:
    limits = Limits(address_B=1 << 30)
    assert run(_allocate, 1 << 20, limits=limits).answer == 1 << 20
    assert "MemoryError" in str(run(_allocate, 1 << 31, limits=limits).failure)


def test_a_wait_that_is_broken_off_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Process] = []

    def start(*arguments: Any, **options: Any) -> Process:
        started.append(Process(*arguments, **options))
        return started[0]

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "Process", start)
    monkeypatch.setattr(runner.select, "select", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(_count, 1, "sleep")
    with pytest.raises(ProcessLookupError):
        os.kill(started[0]._pid, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_forked_processes_side_by_side() -> None:
    """Within a process of its own: the one that runs the tests may have threads."""
    found = answer_of(_count_forked, "return")
    assert found["rows"] == [[{"number": 0}], [{"number": 0}, {"number": 1}]]
    assert found["answers"] == [1, 2]
    assert answer_of(_count_forked, "raise")["why"] == ["ValueError: no further"] * 2


def test_a_function_that_no_other_process_finds_is_refused() -> None:
    def inner() -> None: ...

    with pytest.raises(ValueError, match="not at the top of a module"):
        name_of(inner)
