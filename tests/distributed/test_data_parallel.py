"""Models in DistributedDataParallel: bits of plain DDP on every rank, with its buckets inside the budget."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lowtide
from lowtide.device import shim
from lowtide.errors import InexactCapture
from tests.ranks import on_ranks

pytestmark = [
    pytest.mark.skipif(not shim.available(), reason="no arena here"),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo here"),
]
WIDTH, ROWS, STEPS = 48, 640, 10
BUCKET_MB = 0.05  # so that there are several
PLAIN: dict[str, Any] = {}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.narrow(F.gelu(self.widen(self.norm(x)))))


class Net(nn.Module):
    """Blocks, batch norm (whose statistics the ranks share) and, if asked, a layer that nobody calls."""

    def __init__(self, unused: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 10)
        if unused:
            self.never = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """A communication hook of the user's."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda f: f.value()[0] / dist.get_world_size())


# torch reads the annotations as objects.
_hook.__annotations__.update({"bucket": dist.GradBucket, "return": torch.futures.Future[Tensor]})


def _train(kind: str, budget: str | int | None, hook: bool = False) -> tuple[list[Any], Any]:
    """Ten batches, five updates: gradients are accumulated over two batches and clipped; dropout is on."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model: nn.Module = DistributedDataParallel(Net(kind == "unused"), bucket_cap_mb=BUCKET_MB, **KINDS[kind])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if hook:
        model.register_comm_hook(None, _hook)
    if budget is not None:
        model = lowtide.fit(model, budget, optimizer=optimizer, work=50)
    torch.manual_seed(1 + dist.get_rank())
    found: list[Any] = []
    for step in range(STEPS):
        accumulates = step % 2 == 0 and kind != "static"  # DDP has to see the static graph's first backward itself
        with model.no_sync() if accumulates else contextlib.nullcontext():
            loss = F.cross_entropy(model(torch.randn(ROWS, WIDTH)), torch.randint(10, (ROWS,)))
            loss.backward()
        found.append(loss.detach())
        if not accumulates:
            found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return [*found, *(t.clone() for t in model.state_dict().values())], getattr(model, "lowtide", None)


def _compared(cases: list[tuple[str, str, bool]]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for kind, budget, hook in cases:
        if (kind, hook) not in PLAIN:
            PLAIN[kind, hook] = _train(kind, None, hook)[0]
        results, handle = _train(kind, budget, hook)
        record = handle.plan.record
        answers[f"{kind}, {budget}, hook={hook}"] = {
            "same": len(results) == len(PLAIN[kind, hook]) and all(map(torch.equal, results, PLAIN[kind, hook])),
            "reserved_B": record.reserved_B,
            "budget_B": record.budget_B,
            "outside_B": record.outside_B,
            "votes": handle.session.agreement.votes,
        }
    return answers


def _on_two() -> dict[str, Any]:
    budgets = ("100% of plain", "60% of plain", "50% of plain")
    cases = [("plain", b, False) for b in budgets]
    cases += [(k, "60% of plain", False) for k in ("views", "unused", "static")]
    return _compared([*cases, ("plain", "60% of plain", True)])


def _on_four() -> dict[str, Any]:
    """DDP refills its buckets in the order of readiness, which differs; not where it looks for unused parameters."""
    return _compared([("unused", "60% of plain", False)])


@pytest.mark.parametrize(("work", "count"), [(_on_two, 2), (_on_four, 4)])
def test_bits_are_those_of_plain_data_parallel_training(work: Any, count: int, tmp_path: Any) -> None:
    bucket_B = sum(p.nbytes for p in Net(False).parameters())
    for answer in on_ranks(functools.partial(work), tmp_path, count):
        for name, found in answer.items():
            assert found["same"], name
            assert found["reserved_B"] <= found["budget_B"], name
            assert found["outside_B"] >= bucket_B, name


def _wrapped_before_and_since() -> dict[str, str]:
    """What training on more than two ranks is refused with; the second model is wrapped after it was fitted."""
    answers = {}
    with pytest.raises(InexactCapture) as before:
        lowtide.fit(DistributedDataParallel(nn.Linear(8, 8)), "1GiB")
    answers["before"] = str(before.value)
    model = DistributedDataParallel(lowtide.fit(nn.Linear(8, 8), "1GiB"))
    with pytest.raises(InexactCapture) as since:
        model(torch.randn(4, 8))
    answers["since"] = str(since.value)
    return answers


def test_sums_in_another_order_are_refused_at_exact(tmp_path: Any) -> None:
    for answer in on_ranks(_wrapped_before_and_since, tmp_path, 3):
        for found in answer.values():
            assert "more than two ranks" in found
            assert "find_unused_parameters=True" in found
