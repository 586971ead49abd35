"""Plans on disk: a second session finds what the first one made, and no file, disk or process can stop a training."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import lowtide
from lowtide.errors import BudgetError
from lowtide.ir import file_store
from lowtide.ir.likeness import memory, structure
from lowtide.ir.plan import Covers, PlanRecord, Status
from lowtide.pipeline import request_here
from lowtide.plan_cache import lookup, store
from lowtide.plan_cache.key import revived
from lowtide.plan_cache.store import Header, PlanCache, default_limit_B
from lowtide.record import Constraints, PlanOptions
from lowtide.units import Budget
from tests.networks import twin
from tests.report.plan_records import record

X = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
KEY = "0123456789abcdef"


def header(key: str = KEY, **facts: Any) -> Header:
    fields = {
        "key": key, "structure": "feedfeedfeedfeed", "size_B": 100, "name": "tiny", "shapes": "x float32[2]",
        "budget_B": 1, "environment": "here", "lowtide": "1",
    }  # fmt: skip
    return Header(**(fields | facts))


@pytest.fixture(autouse=True)
def _turned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOWTIDE_PLAN_CACHE", raising=False)


@pytest.fixture
def cache(tmp_path: Path) -> PlanCache:
    return PlanCache(tmp_path / "plans")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plans of this test alone; profiles are shared with the others."""
    place = tmp_path / "plans"
    monkeypatch.setattr(store, "cache_folder", lambda part: tmp_path / part)
    return place


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the plans that are really made."""
    made: list[int] = []
    inner = lookup.make_record

    def make_record(*args: Any, **kwargs: Any) -> PlanRecord:
        made.append(1)
        return inner(*args, **kwargs)

    monkeypatch.setattr(lookup, "make_record", make_record)
    return made


@contextlib.contextmanager
def warned(caplog: pytest.LogCaptureFixture, words: str) -> Iterator[None]:
    """Inside, exactly one line with these words is logged as a warning."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="lowtide"):
        yield
    assert [r.getMessage() for r in caplog.records if words in r.getMessage()], caplog.text
    assert len(caplog.records) == 1, caplog.text


# the files ----------------------------------------------------------------------------------------------------


def test_what_is_put_comes_back_in_another_cache(cache: PlanCache) -> None:
    assert cache.get("feedfeedfeedfeed", KEY) is None
    cache.put(header(), record())
    again = PlanCache(cache.store.folder)
    assert again.get("feedfeedfeedfeed", KEY) == record()
    assert again.get("feedfeedfeedfeed", "f" * 16) is None
    (entry,) = again.store.entries()
    assert (entry.about, entry.size_B > 0) == (header(), True)
    assert [e.about.key for e in again.shapes_of("feedfeedfeedfeed")] == [KEY]
    assert again.shapes_of("0" * 16) == []


def resealed(text: bytes) -> bytes:
    """A file's first two lines with the digest that they have now."""
    body = b"".join(line + b"\n" for line in text.split(b"\n")[:2])
    return body + hashlib.sha256(body).hexdigest().encode() + b"\n"


DAMAGES = {
    "empty": lambda _: b"",
    "random": lambda _: os.urandom(5000),
    "cut in the header": lambda text: text[:40],
    "cut in the plan": lambda text: text[: len(text) // 2],
    "one byte less": lambda text: text[:-2],
    "a digit changed": lambda text: text.replace(b'"budget_B":41', b'"budget_B":42'),
    "an old plan": lambda text: resealed(text.replace(b'"version":1', b'"version":0')),
    "another key": lambda text: resealed(text.replace(KEY.encode(), b"f" * 16, 1)),
    "no header": lambda text: resealed(b"{}\n" + text.splitlines()[1] + b"\n"),
    "no plan": lambda text: resealed(text.partition(b"\n")[0] + b"\n{}\n\n"),
    "deep": lambda text: resealed(text.partition(b"\n")[0] + b"\n" + b"[" * 100_000 + b"\n\n"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_cannot_be_used_is_removed_with_one_line(
    cache: PlanCache, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    cache.put(header(), msgspec.structs.replace(record(), budget_B=41))
    path = cache.store.entries()[0].path
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with warned(caplog, "cannot be used"):
        assert cache.get("feedfeedfeedfeed", KEY) is None
    assert not path.exists()
    cache.put(header(), record())
    assert cache.get("feedfeedfeedfeed", KEY) == record()


def test_other_files_in_the_folder_are_left_alone(cache: PlanCache) -> None:
    cache.put(header(), record())
    mine, odd, damaged = (cache.store.folder / name for name in ("notes.txt", "odd.plan", f"{'a' * 16}.plan"))
    for path in (mine, odd, damaged):
        path.write_bytes(b"\xff\n")
    assert len(cache.store.entries()) == 1
    assert cache.store.clear()[0] == 2
    assert (mine.exists(), odd.exists(), damaged.exists()) == (True, True, False)


def test_the_least_recently_used_go_first(cache: PlanCache) -> None:
    for number in range(4):
        cache.put(header(f"{number:016x}"), record())
    sizes_B = [e.size_B for e in cache.store.entries()]
    for number, age_s in enumerate((40, 30, 20, 10)):
        path = cache.store.folder / f"feedfeedfeedfeed-{number:016x}.plan"
        os.utime(path, (time.time() - age_s, time.time() - age_s))
    assert cache.get("feedfeedfeedfeed", f"{0:016x}") is not None  # used now
    small = PlanCache(cache.store.folder, limit_B=sum(sizes_B[:3]))
    small.put(header("a" * 16), record())
    assert [e.about.key for e in small.store.entries()] == ["a" * 16, f"{0:016x}", f"{3:016x}"]


def test_a_plan_larger_than_the_limit_is_not_kept(cache: PlanCache) -> None:
    cache.put(header(), record())
    small = PlanCache(cache.store.folder, limit_B=100)
    small.put(header("b" * 16), record())
    assert [e.about.key for e in small.store.entries()] == [KEY]
    PlanCache(cache.store.folder, limit_B=0).put(header("c" * 16), record())
    assert PlanCache(cache.store.folder, limit_B=0).get("feedfeedfeedfeed", KEY) is None
    assert len(cache.store.entries()) == 1


def test_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    assert PlanCache().store.folder == tmp_path / "plans"
    assert default_limit_B() == 2**30
    for text, size_B in (("0", 0), ("512MiB", 2**29), ("1000", 1000)):
        monkeypatch.setenv("LOWTIDE_PLAN_CACHE", text)
        assert default_limit_B() == size_B
    for text in ("much", "60%"):
        monkeypatch.setenv("LOWTIDE_PLAN_CACHE", text)
        with pytest.raises(BudgetError, match="LOWTIDE_PLAN_CACHE"):
            default_limit_B()


def test_clearing_by_age(cache: PlanCache) -> None:
    for key, age_s in (("a" * 16, 1000.0), ("b" * 16, 0.0)):
        cache.put(header(key), record())
        os.utime(cache.store.folder / f"feedfeedfeedfeed-{key}.plan", (time.time() - age_s,) * 2)
    unfinished = cache.store.folder / "left.unfinished"
    unfinished.touch()
    os.utime(unfinished, (0, 0))
    assert cache.store.clear(older_than_s=500)[0] == 1
    assert [e.about.key for e in cache.store.entries()] == ["b" * 16]
    assert not unfinished.exists()


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_disk_costs_one_line(
    cache: PlanCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(file_store.os, "replace", refuse)
    with warned(caplog, os.strerror(problem)):
        cache.put(header(), record())
        cache.put(header(), record())
    assert list(cache.store.folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_costs_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    cache = PlanCache(tmp_path / "file" / "plans")
    with warned(caplog, "plans cannot be"):
        assert cache.get("feedfeedfeedfeed", KEY) is None
        cache.put(header(), record())
        assert cache.store.entries() == []


_WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
import msgspec
from lowtide.plan_cache.store import Header, PlanCache
from tests.report.plan_records import record
first = msgspec.json.decode({header!r}, type=Header)
def header(key):
    return msgspec.structs.replace(first, key=key)
cache = PlanCache(Path({folder!r}), limit_B=60_000)
for turn in range(20):
    for number in range(6):
        key = f"{{number:016x}}"
        found = cache.get("feedfeedfeedfeed", key)
        assert found is None or found == record()
        cache.put(header(key), record())
    if turn % 10 == 9:
        cache.store.clear()
"""


def test_several_processes_write_read_evict_and_clear_at_once(cache: PlanCache) -> None:
    root = str(Path(__file__).resolve().parents[2])
    code = _WRITER.format(root=root, folder=str(cache.store.folder), header=msgspec.json.encode(header()))
    writers = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, cwd=root) for _ in range(2)
    ]
    for writer in writers:
        _, said = writer.communicate(timeout=120)
        assert writer.returncode == 0, said
        assert "cannot be used" not in said
    assert not list(cache.store.folder.glob("*.unfinished"))


# the plans ----------------------------------------------------------------------------------------------------


class Tiny(nn.Module):
    """A few layers with their loss inside."""

    def __init__(self) -> None:
        super().__init__()
        between = [m for _ in range(4) for m in (nn.Linear(32, 32), nn.Tanh())]
        self.body = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.2), *between)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).square().mean()


def build() -> Tiny:
    torch.manual_seed(0)
    return Tiny().train()


def _trained(budget: str = "90% of plain", **options: Any) -> tuple[Any, bool]:
    """A fitted model after two steps, and whether it equals the plain one."""
    torch._dynamo.reset()
    plain = build()
    fitted: Any = lowtide.fit(twin(plain), budget=budget, work=3_000, **options)
    for model in (plain, fitted):
        torch.manual_seed(1)
        for _ in range(2):
            model(X).backward()
    pairs = zip(plain.parameters(), fitted.parameters(), strict=True)
    return fitted, all(p.grad is not None and torch.equal(p.grad, q.grad) for p, q in pairs)


@pytest.mark.usefixtures("folder")
def test_a_second_session_takes_the_plan_of_the_first(planned: list[int]) -> None:
    first, equal = _trained()
    assert (equal, len(planned)) == (True, 1)
    second, equal = _trained()
    assert (equal, len(planned)) == (True, 1)
    one, two = first.lowtide.plan.record, second.lowtide.plan.record
    assert msgspec.structs.replace(one, graph=two.graph) == two


@pytest.mark.breadth
@pytest.mark.usefixtures("folder")
def test_what_is_asked_otherwise_is_planned_anew(planned: list[int]) -> None:
    model, options = build(), {"budget": "90% of plain", "work": 1_000}
    for _ in range(2):
        for other in ({}, {"budget": "95% of plain"}, {"seed": 1}, {"scope": "none"}, {"work": 1_001}):
            lowtide.plan(model, (X,), **(options | other))
    assert len(planned) == 5


@pytest.mark.usefixtures("folder")
def test_other_optimizers_and_threads_have_other_keys(planned: list[int]) -> None:
    model, batch = build(), (X,)
    for optimizer in (None, torch.optim.AdamW(model.parameters())):
        lowtide.plan(model, batch, budget="90% of plain", work=2_000, optimizer=optimizer)
        lowtide.plan(model, batch, budget="90% of plain", work=2_000, optimizer=optimizer)
    assert len(planned) == 2
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        lowtide.plan(model, batch, budget="90% of plain", work=2_000)
    finally:
        torch.set_num_threads(threads)
    assert len(planned) == 3


def test_a_cached_plan_that_is_illegal_is_made_again(
    folder: Path, planned: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    _trained()
    cache = PlanCache(folder)
    (entry,) = cache.store.entries()
    found = cache.get(entry.about.structure, entry.about.key)
    assert found is not None
    steps = found.schedule.steps
    broken = msgspec.structs.replace(found, schedule=msgspec.structs.replace(found.schedule, steps=steps[:-3]))
    cache.put(entry.about, broken)
    with warned(caplog, "cannot be used"):
        _, equal = _trained()
    assert (equal, len(planned)) == (True, 2)


def test_a_plan_for_other_bytes_is_not_taken(folder: Path, planned: list[int]) -> None:
    _trained()
    cache = PlanCache(folder)
    (entry,) = cache.store.entries()
    found = cache.get(entry.about.structure, entry.about.key)
    assert found is not None
    smaller = msgspec.structs.replace(found, graph=record().graph)
    cache.put(entry.about, smaller)
    _, equal = _trained()
    assert (equal, len(planned)) == (True, 2)


def test_infeasible_budgets_and_interrupted_searches_are_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = build(), (X,)
    with pytest.raises(lowtide.InfeasibleBudget) as caught:
        lowtide.plan(model, batch, budget=1, work=1_000)
    assert [e.about.budget_B for e in PlanCache(folder).store.entries()] == [caught.value.smallest_B]  # what was named
    inner = lookup.make_record

    def interrupted(*args: Any, **kwargs: Any) -> PlanRecord:
        made = inner(*args, **kwargs)
        return msgspec.structs.replace(made, outcome=msgspec.structs.replace(made.outcome, status=Status.INTERRUPTED))

    monkeypatch.setattr(lookup, "make_record", interrupted)
    lowtide.plan(model, batch, budget="90% of plain", work=1_000)
    assert len(PlanCache(folder).store.entries()) == 1


def test_seconds_that_moved_a_little_are_worked_into_the_claims_and_others_refused() -> None:
    old = record()
    constraints, covers = Constraints(outside_B=old.outside_B), Covers()

    def slower(factor: float) -> PlanRecord | None:
        recipes = tuple(msgspec.structs.replace(r, time_s=r.time_s * factor) for r in old.graph.recipes)
        graph = msgspec.structs.replace(old.graph, recipes=recipes)
        assert memory(graph) == memory(old.graph)
        options = PlanOptions(budget=Budget(size_B=old.budget_B))
        return revived(old, request_here(graph, options, constraints=constraints, device="cpu", covers=covers))

    assert structure(old.graph) == structure(msgspec.structs.replace(old.graph, name="other"))
    near = slower(1.05)
    assert near is not None
    assert near.time_s == pytest.approx(1.05 * old.time_s)
    assert near.keep_all_time_s == pytest.approx(1.05 * old.keep_all_time_s)
    assert near.outcome.bound_s <= 1.05 * old.outcome.bound_s * (1 + 1e-9)
    assert near.outcome.bound_s >= 1.04 * old.outcome.bound_s
    assert slower(1.5) is None


_TRAINER = """
import sys
sys.path.insert(0, {root!r})
import pytest
from lowtide.plan_cache import lookup
from tests.conftest import search_briefly
from tests.api.test_plan_cache import trained_within
search_briefly(pytest.MonkeyPatch())
made = []
inner = lookup.make_record
lookup.make_record = lambda *args, **kwargs: (made.append(1), inner(*args, **kwargs))[1]
print(trained_within(), len(made))
"""


def trained_within() -> bool:
    """Takes a step of a fitted model with its optimizer; whether its plan has addresses."""
    model: Any = build()
    optimizer = torch.optim.AdamW(model.parameters())
    lowtide.fit(model, budget="90% of plain", work=2_000, optimizer=optimizer)
    model(X).backward()
    optimizer.step()
    return model.lowtide.plan.record.layout is not None


def test_another_process_has_the_same_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: list[int]) -> None:
    """Whatever the order of its sets is."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    with_addresses = trained_within()
    assert len(planned) == 1
    root = str(Path(__file__).resolve().parents[2])
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    done = subprocess.run(
        [sys.executable, "-c", _TRAINER.format(root=root)],
        env={**os.environ, "PYTHONHASHSEED": seed, "LOWTIDE_PLAN_CACHE": "1GiB"},
        capture_output=True, text=True, check=False, cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(with_addresses), "0"]


class Broken(Tiny):
    """The same, with Python between its halves."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = self.body[:5](x)
        torch._dynamo.graph_break()
        return self.body[5:](half).square().mean()


@pytest.mark.usefixtures("folder")
def test_a_step_of_several_graphs_is_kept_as_well(planned: list[int]) -> None:
    expected = None
    for _ in range(2):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model: Any = Broken().train()
        lowtide.fit(model, budget="100% of plain", work=2_000)
        torch.manual_seed(1)
        model(X).backward()
        found = [p.grad for p in model.parameters()]
        assert expected is None or all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        expected = found
        assert model.lowtide.plan.record.graphs == 2
        assert len(model.lowtide.plan.record.breaks) == 1
    assert len(planned) == 1


@pytest.mark.usefixtures("folder")
def test_a_number_that_changes_in_every_step_costs_no_search(
    planned: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """A temperature that cools: the program and its bytes are the same, an operator's constant is not."""

    class AnnealingRun(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.temperature = nn.Linear(16, 64), 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.temperature *= 0.9
            return (self.body(x) / self.temperature).softmax(-1).square().mean()

    torch.manual_seed(0)
    plain = AnnealingRun()
    expected = [trained_step(plain) for _ in range(6)]
    torch.manual_seed(0)
    fitted = lowtide.fit(AnnealingRun(), budget="1MiB")
    with caplog.at_level(logging.WARNING, "lowtide"):
        found = [trained_step(fitted) for _ in range(6)]
    assert all(
        torch.equal(a, b) for one, other in zip(expected, found, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert len(planned) <= 2  # with the number as a constant, and as an argument
    assert not [r for r in caplog.records if "other programs" not in r.message]


def trained_step(model: nn.Module) -> list[torch.Tensor]:
    """The loss and the gradients of a step."""
    model.zero_grad()
    loss = model(X)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
