"""What gets at storages past torch's dispatcher, or says less than it does: each is right, or refused in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import lowtide
from lowtide.api.eager import Eager
from lowtide.device import shim

pytestmark = pytest.mark.skipif(not shim.available(), reason="no arena here")
BUDGET_B = 400_000


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library("lowtide_tests", "FRAGMENT")
    yield made
    made._destroy()


def chain(x: Tensor, length: int = 30) -> list[Tensor]:
    found = [x]
    for _ in range(length):
        found.append(torch.sin(found[-1]) + 0.5)
    return found


def big() -> Tensor:
    return torch.linspace(-2.0, 2.0, 8192)


def _fill(x: Tensor) -> None:
    x.untyped_storage().fill_(63)


def _set_item(x: Tensor) -> None:
    x.untyped_storage()[3] = 65


def _copy(x: Tensor) -> None:
    x.untyped_storage().copy_((big() * 3.0).untyped_storage())


def _empty(x: Tensor) -> None:
    size_B = x.untyped_storage().nbytes()
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(size_B)
    x.fill_(0.25)


@pytest.mark.parametrize("change", [_fill, _set_item, _copy, _empty])
def test_a_storage_that_is_changed_by_hand(change: Callable[[Tensor], None]) -> None:
    def program() -> list[Tensor]:
        kept = chain(big(), 8)
        before = [t * 2.0 for t in kept]  # of the old content
        change(kept[4])
        after = kept[4] + 1.0
        more = chain(big() * 1.5)
        return [before[4].clone(), before[3].clone(), kept[5].clone(), kept[4].clone(), after, more[9].clone()]

    plain = program()
    with lowtide.eager(BUDGET_B * 2, policy="lru") as run:
        found = program()
    assert run.stats().evictions > 0
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


def test_storages_are_read_whole() -> None:
    plain = chain(big())
    with lowtide.eager(BUDGET_B, policy="lru") as run:
        kept = chain(big())
        assert run.stats().evictions > 0
        assert kept[3].untyped_storage()[5] == plain[3].untyped_storage()[5]
        assert kept[4].untyped_storage().data_ptr() == kept[4].data_ptr()
        del kept


def test_an_operator_that_writes_what_it_does_not_say(library: torch.library.Library) -> None:
    name = "scaled"
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x.mul_(2.0).sum(), "CPU")
    call = getattr(torch.ops.lowtide_tests, name)

    def wrong(context: Eager) -> None:
        with context:
            call(chain(big(), 4)[2])

    with pytest.raises(
        RuntimeError, match=re.escape(f"lowtide_tests.{name}.default") + ".*does not mark.*mutates_args"
    ):
        wrong(lowtide.eager(BUDGET_B))
    with lowtide.eager(BUDGET_B):
        assert torch.equal(chain(big(), 4)[4], chain(big(), 4)[4])


def test_an_operator_that_draws_what_it_does_not_say(library: torch.library.Library) -> None:
    name = "noisy"
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x + torch.rand_like(x), "CPU")
    call = getattr(torch.ops.lowtide_tests, name)

    def program() -> list[Tensor]:
        torch.manual_seed(3)
        noisy = [call(t) for t in chain(big())]
        return [t.clone() for t in noisy] + [torch.get_rng_state()]

    plain = program()[::7]
    with lowtide.eager(1_700_000, policy="lru") as run:
        found = program()[::7]  # others are released
    assert run.stats().recomputations > 0
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
