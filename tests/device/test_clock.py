"""Timing behind a spin, on a simulated GPU: two clocks that a test moves."""

from __future__ import annotations

import time

import pytest
import torch

from lowtide.device import clock


class Simulated:
    """A device that does work in order; `now_s` is the processor's clock, `free_s` when the device is done."""

    def __init__(self) -> None:
        self.now_s = self.free_s = 0.0
        self.spins: list[int] = []

    def issue(self, issue_s: float, device_s: float) -> None:
        self.now_s += issue_s
        self.free_s = max(self.free_s, self.now_s) + device_s

    def spin(self, cycles: int) -> None:
        self.spins.append(cycles)
        self.issue(0.0, cycles * 0.5e-9)

    def wait(self) -> None:
        self.now_s = max(self.now_s, self.free_s)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    device = Simulated()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at_s = max(device.free_s, device.now_s)

        def query(self) -> bool:
            return device.now_s >= self.at_s

        def synchronize(self) -> None:
            device.wait()

        def elapsed_time(self, later: Event) -> float:
            return (later.at_s - self.at_s) * 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", device.spin)
    monkeypatch.setattr(torch.cuda, "synchronize", device.wait)
    monkeypatch.setattr(time, "perf_counter", lambda: device.now_s)
    return device


@pytest.mark.parametrize(("issue_s", "device_s"), [(8e-6, 3e-6), (8e-6, 5e-3), (4e-4, 1e-5)])
def test_the_two_clocks_are_told_apart(issue_s: float, device_s: float, gpu: Simulated) -> None:
    found = clock.timed(lambda: gpu.issue(issue_s, device_s), device="cuda")
    assert found.device_s == pytest.approx(device_s)
    assert found.issue_s == pytest.approx(issue_s)
    assert (len(gpu.spins) > 5) == (issue_s * 10 > 5e-4)  # a spin that ended too early is made again, longer


def test_a_call_that_waits_for_the_device_is_timed_too(gpu: Simulated) -> None:
    def reads_a_number() -> None:
        gpu.issue(1e-5, 1e-4)
        gpu.wait()

    found = clock.timed(reads_a_number, device="cuda")
    assert found.device_s >= 1e-4
    assert found.issue_s >= 1e-4


def test_on_a_processor_the_work_is_timed() -> None:
    found = clock.timed(lambda: None)
    assert found.issue_s == 0.0
    assert found.device_s >= 0.0
