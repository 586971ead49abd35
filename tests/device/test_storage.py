"""Surgery on storages: seen by views and saved tensors, no version changes, and touching what is gone raises."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch

from lowtide.device.arena import Arena
from lowtide.errors import StorageError
from tests.device import surgery

GONE = "the values of 'relu' were dropped here"


@pytest.fixture(autouse=True)
def _compiled(module: object) -> None:
    """Every test needs the compiled module."""


def fresh(count: int = 1000) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32)


def test_dropping_frees_the_bytes_and_keeps_everything_else(arena: Arena) -> None:
    with arena.engaged():
        tensor = fresh()
    view, storage = tensor[10:].view(11, 90).t(), tensor.untyped_storage()
    shape, strides, version = view.shape, view.stride(), tensor._version
    surgery.drop(storage, GONE)
    assert arena.stats().in_use_B == 0
    assert surgery.is_dropped(storage)
    assert (storage.nbytes(), view.shape, view.stride(), tensor._version) == (4000, shape, strides, version)
    assert surgery.place_of(storage, arena) is None
    assert surgery.restore(storage)
    assert not surgery.is_dropped(storage)
    tensor.copy_(fresh())
    assert view[0, 0].item() == 10.0


TOUCHES: dict[str, Callable[[torch.Tensor], object]] = {
    "operator": lambda t: t.sum(),
    "in place": lambda t: t.add_(1.0),
    "address": lambda t: t.data_ptr(),
    "product": lambda t: t.view(10, 100) @ t.view(100, 10),
    "item": lambda t: t[3].item(),
    "print": lambda t: str(t),
    "clone": lambda t: t.clone(),
    "copy from": lambda t: torch.empty(1000).copy_(t),
    "copy to": lambda t: t.copy_(torch.empty(1000)),
    "numpy": lambda t: t.numpy(),
    "list": lambda t: t.tolist(),
    "deepcopy": lambda t: copy.deepcopy(t),
    "pickle": lambda t: pickle.dumps(t),
    "save": lambda t: torch.save(t, io.BytesIO()),
    "share": lambda t: t.share_memory_(),
    "fill": lambda t: t.zero_(),
    "dlpack": lambda t: torch.from_dlpack(t).sum(),
    "storage's byte": lambda t: t.untyped_storage()[0],
    "storage's copy": lambda t: t.untyped_storage().clone(),
    "resize": lambda t: t.untyped_storage().resize_(8000),
    "other device": lambda t: t.to(torch.float64),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_every_touch_of_dropped_bytes_raises_the_message(touch: Callable[[torch.Tensor], object]) -> None:
    tensor = fresh()
    version = tensor._version
    surgery.drop(tensor.untyped_storage(), GONE)
    with pytest.raises(RuntimeError, match="'relu' were dropped"):
        touch(tensor)
    assert tensor._version == version
    surgery.restore(tensor.untyped_storage())
    assert bool((tensor.fill_(2.0) == 2.0).all())


def test_saved_tensors_see_it_and_backward_is_right() -> None:
    def run(evict: bool) -> torch.Tensor:
        x = fresh().requires_grad_()
        y = x.sin()
        z = (y * y).sum()
        if evict:
            surgery.drop(y.untyped_storage(), GONE)
            with pytest.raises(RuntimeError, match="'relu' were dropped"):
                z.backward(retain_graph=True)
            again = x.detach().sin()
            surgery.steal(y.untyped_storage(), again.untyped_storage())
            with pytest.raises(RuntimeError, match="belong to another"):
                again.sum()
        x.grad = None
        z.backward()
        assert x.grad is not None
        return x.grad

    assert torch.equal(run(False), run(True))


def test_stealing_copies_nothing() -> None:
    target, source = fresh(), fresh() * 2
    address, view, version = source.data_ptr(), target[5:], target._version
    surgery.steal(target.untyped_storage(), source.untyped_storage())
    assert target.data_ptr() == address
    assert view[0].item() == 10.0
    assert target._version == version
    assert surgery.is_dropped(source.untyped_storage())


def test_relocation(arena: Arena) -> None:
    tensor = torch.nn.Parameter(fresh())
    view, storage, version = tensor.detach()[7:], tensor.untyped_storage(), tensor._version
    places = []
    for where in (surgery.GENERAL, surgery.PERSISTENT, 4096, 8192):
        assert surgery.relocate(storage, arena, where)
        places.append(surgery.place_of(storage, arena))
        assert view[0].item() == 7.0
        assert arena.stats().blocks == 1
    assert places[2:] == [4096, 8192]
    assert not surgery.relocate(storage, arena, 8192)
    assert surgery.place_of(storage, arena) == 8192
    assert surgery.relocate(storage, None)
    assert surgery.place_of(storage, arena) is None
    assert arena.stats().blocks == 0
    assert tensor._version == version
    assert torch.equal(tensor.detach(), fresh())


def test_relocation_without_space_changes_nothing(make_arena: Callable[..., Arena]) -> None:
    arena, tensor = make_arena(4096, small_zone_B=0, persistent_B=0), fresh(2000)
    assert not surgery.relocate(tensor.untyped_storage(), arena)
    assert not surgery.relocate(tensor.untyped_storage(), arena, 0)
    assert torch.equal(tensor, fresh(2000))
    with pytest.raises(StorageError, match="multiple of the alignment"):
        surgery.relocate(tensor.untyped_storage(), arena, 5)


def test_restoring_into_a_place(arena: Arena) -> None:
    tensor = fresh()
    surgery.drop(tensor.untyped_storage(), GONE)
    assert surgery.restore(tensor.untyped_storage(), arena, 4096)
    assert surgery.place_of(tensor.untyped_storage(), arena) == 4096
    other = fresh()
    surgery.drop(other.untyped_storage(), GONE)
    assert not surgery.restore(other.untyped_storage(), arena, 4096)
    assert surgery.is_dropped(other.untyped_storage())
    assert surgery.restore(other.untyped_storage(), arena, surgery.PERSISTENT)


def test_restoring_in_a_full_arena_raises_and_stays_dropped(make_arena: Callable[..., Arena]) -> None:
    arena, tensor = make_arena(4096, small_zone_B=0, persistent_B=0), fresh(2000)
    surgery.drop(tensor.untyped_storage(), GONE)
    with arena.engaged(), pytest.raises(torch.OutOfMemoryError):
        surgery.restore(tensor.untyped_storage())
    assert surgery.is_dropped(tensor.untyped_storage())


def test_a_dropped_storage_may_die(arena: Arena) -> None:
    with arena.engaged():
        tensor = fresh()
    surgery.drop(tensor.untyped_storage(), GONE)
    del tensor
    assert arena.slab.check() == ""


def test_owners_are_counted() -> None:
    tensor = fresh()
    storage = tensor.untyped_storage()
    alone = surgery.use_count(storage)
    view = tensor[1:]
    assert surgery.use_count(storage) == alone + 1
    assert surgery.use_count(storage._cdata) == alone + 1
    del view
    assert surgery.use_count(storage) == alone


def test_moving_twice_and_wrong_pairs() -> None:
    a, b, short = fresh(), fresh(), fresh(10)
    with pytest.raises(StorageError, match="not dropped"):
        surgery.restore(a.untyped_storage())
    with pytest.raises(StorageError, match="own bytes"):
        surgery.steal(a.untyped_storage(), a.untyped_storage())
    with pytest.raises(StorageError, match="differ in size"):
        surgery.steal(a.untyped_storage(), short.untyped_storage())
    surgery.drop(a.untyped_storage(), GONE)
    for again in (
        lambda: surgery.drop(a.untyped_storage(), GONE),
        lambda: surgery.steal(b.untyped_storage(), a.untyped_storage()),
        lambda: surgery.relocate(a.untyped_storage(), None),
    ):
        with pytest.raises(StorageError, match="restore it first"):
            again()
    assert torch.equal(b, fresh())


def shared() -> torch.Tensor:
    return fresh().share_memory_()


def seen_by_numpy() -> torch.Tensor:
    tensor = fresh()
    tensor.numpy()
    return tensor


def copy_on_write() -> torch.Tensor:
    tensor = fresh()
    tensor.clone_of = torch._lazy_clone(tensor)  # type: ignore[attr-defined]
    return tensor


FOREIGN: dict[str, Callable[[], torch.Tensor]] = {
    "shared memory": shared,
    "from numpy": lambda: torch.from_numpy(np.arange(1000.0)),
    "seen by numpy": seen_by_numpy,
    "copy on write": copy_on_write,
    "from a buffer": lambda: torch.frombuffer(bytearray(4000), dtype=torch.float32),
    "meta": lambda: torch.empty(1000, device="meta"),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_bytes_that_are_not_the_storages_own_are_left_alone(make: Callable[[], torch.Tensor], arena: Arena) -> None:
    tensor = make()
    storage = tensor.untyped_storage()
    before = None if tensor.is_meta else tensor.clone()
    assert surgery.objection(storage)
    for attempt in (
        lambda: surgery.drop(storage, GONE),
        lambda: surgery.relocate(storage, arena, surgery.PERSISTENT),
        lambda: surgery.steal(storage, fresh().untyped_storage()),
    ):
        with pytest.raises(StorageError, match="it is unchanged"):
            attempt()
    assert before is None or torch.equal(tensor, before)


def test_blocks_from_before_the_arena_are_plain() -> None:
    assert surgery.objection(torch.ones(10).untyped_storage()) == ""
    assert surgery.objection(torch.UntypedStorage(1000)) == ""  # made by torch's default allocator
