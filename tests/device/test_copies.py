"""Copy engines and the host's own engine, without a plan."""

from __future__ import annotations

import pytest
import torch

from lowtide._core import Event
from lowtide.device.copies import ThreadedCopies
from lowtide.device.engines import Engines, Transfer
from lowtide.errors import ArenaError, LowtideError


def test_a_thread_copies_what_it_is_given_and_counts() -> None:
    lane = ThreadedCopies(1e9)
    source, target = torch.randn(100_000), torch.zeros(100_000)
    gate = Event()
    done = lane.submit(target, source, 400_000, [gate])
    assert not done.is_set
    gate.set()
    assert lane.wait(done) >= 0.0
    assert torch.equal(source, target)
    lane.drain()
    seen = lane.traffic()
    assert (seen.copies, seen.moved_B, seen.rate_Bps) == (1, 400_000, 1e9)
    assert seen.share is not None
    assert 0.0 < seen.share <= 1.0


def test_the_host_computes_in_order_and_reports_what_failed() -> None:
    engines = Engines(2**20)
    found: list[int] = []
    gate = Event()
    engines.host.submit(lambda: found.append(1), [gate])
    last = engines.host.submit(lambda: found.append(2), ())
    assert found == []
    gate.set()
    last.wait()
    assert found == [1, 2]

    def fails() -> None:
        raise ValueError("no such luck")

    engines.begin(Transfer(engines.host.submit(fails, ()), "w"))
    engines.begin(Transfer(engines.host.submit(lambda: found.append(3), ()), "w"))
    with pytest.raises(LowtideError, match=r"on the host failed \(ValueError: no such luck\)"):
        engines.finish()
    engines.drain()
    engines.host.submit(lambda: found.append(4), ()).wait()
    assert found == [1, 2, 4]
    assert engines.stats().host_runs == 5
    engines.close()


def test_engines_end_and_begin_anew() -> None:
    engines = Engines(2**20, 1e8)
    here, there = torch.ones(1000, dtype=torch.float64), engines.pool.empty((1000,), torch.float64)
    engines.begin(Transfer(engines.lanes[0].submit(there, here, 8000, ()), "x"))
    engines.close()
    assert bool((there == 1.0).all())
    assert engines.pool.stats().in_use_B == 0
    assert engines.stats().to_host.copies == 0


def test_a_pool_of_nothing() -> None:
    with pytest.raises(ArenaError, match="host pool of 0 B"):
        _ = Engines(0).pool
