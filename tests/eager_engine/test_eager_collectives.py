"""`lowtide.eager` in two processes that talk to each other: the same bits as without, at every budget that runs.

Collectives write past their schemas, go on after they have returned, and may never be run a second time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import lowtide
from lowtide.device import shim
from tests.ranks import on_two_ranks

pytestmark = [
    pytest.mark.skipif(not shim.available(), reason="no arena here"),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo here"),
]
WIDTH, ROWS = 64, 256
Outcome = tuple[list[float], list[Tensor]]


def _layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))


def _train(net: nn.Module, forward: Callable[[Tensor], Tensor], finish: Callable[[], None] | None = None) -> Outcome:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(3):
        loss = forward(torch.randn(ROWS, WIDTH))
        loss.backward()
        if finish is not None:
            finish()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]
    return losses, [p.detach().clone() for p in whole]


def reduced() -> Outcome:
    """An activation is summed in place, after others were computed from it."""
    net = _layers()

    def forward(x: Tensor) -> Tensor:
        h = net[:4](x)
        side = h.detach() * 2.0
        half = side * 0.5
        dist.all_reduce(side)
        return net[4:](h * side + half).square().mean()

    return _train(net, forward)


def meanwhile() -> Outcome:
    """A sum is under way while other operators need bytes."""
    net = _layers()

    def forward(x: Tensor) -> Tensor:
        h = net[:4](x)
        side = h.detach().sin()
        work = dist.all_reduce(side, async_op=True)
        loss = net[4:](h).square().mean()
        work.wait()
        return loss + (side * h).mean()

    return _train(net, forward)


def gathered() -> Outcome:
    """Lists of results; and a result that arrives after its operator has returned."""
    net = _layers()

    def forward(x: Tensor) -> Tensor:
        h = net[:4](x)
        others = [torch.empty(ROWS, WIDTH) for _ in range(dist.get_world_size())]
        dist.all_gather(others, h.detach())
        name = dist.group.WORLD.group_name
        both = torch.ops._c10d_functional.all_gather_into_tensor(h.detach(), 2, name)
        both = torch.ops._c10d_functional.wait_tensor(both)
        return net[4:](h * others[1 - dist.get_rank()] + both[:ROWS]).square().mean()

    return _train(net, forward)


def averaged() -> Outcome:
    """Gradients are summed by hand."""
    net = _layers()

    def finish() -> None:
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)

    return _train(net, lambda x: net(x).square().mean(), finish)


def parallel() -> Outcome:
    """DistributedDataParallel, in several buckets."""
    net = nn.parallel.DistributedDataParallel(_layers(), bucket_cap_mb=0.02)
    return _train(net, lambda x: net(x).square().mean())


def sharded() -> Outcome:
    """FSDP2: parameters are gathered into storages that are emptied and filled again."""
    from torch.distributed.fsdp import fully_shard

    net = _layers()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    return _train(net, lambda x: net(x).square().mean())


PROGRAMS = {f.__name__: f for f in (reduced, meanwhile, gathered, averaged, parallel, sharded)}


def _all() -> dict[str, list[tuple[bool, int]]]:
    return {name: _tried(program) for name, program in PROGRAMS.items()}


def _tried(program: Callable[[], Outcome]) -> list[tuple[bool, int]]:
    """Per budget, whether the bits are the plain ones, and how much was evicted."""
    plain = program()
    with lowtide.eager("64MiB", policy="tide") as wide:
        found = [(_same(plain, program()), 1)]
    for share in (0.9, 0.8):
        with lowtide.eager(int(wide.stats().peak_B * share), policy="tide") as run:
            same = _same(plain, program())
        found.append((same, run.stats().evictions))
    return found


def _same(a: Outcome, b: Outcome) -> bool:
    return a[0] == b[0] and all(torch.equal(x, y) for x, y in zip(a[1], b[1], strict=True))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[tuple[bool, int]]]]:
    """What each of two processes found."""
    return on_two_ranks(_all, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_processes_compute_what_they_compute_without(
    name: str, answers: list[dict[str, list[tuple[bool, int]]]]
) -> None:
    for answer in answers:
        assert all(same for same, _ in answer[name])
        assert all(evictions for _, evictions in answer[name])
