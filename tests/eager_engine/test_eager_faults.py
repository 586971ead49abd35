"""What may happen inside a context besides training: each with a clear outcome."""

from __future__ import annotations

import copy
import gc
import io
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import lowtide
from lowtide.api.eager import Eager
from lowtide.device import shim
from lowtide.ir.tape import Ran, load_tape

pytestmark = pytest.mark.skipif(not shim.available(), reason="no arena here")
BUDGET_B = 400_000
WIDE_B = 2**24


def context(budget_B: int = BUDGET_B, **options: Any) -> Eager:
    return lowtide.eager(budget_B, **{"policy": "tide", **options})


def chain(x: Tensor, length: int = 30) -> list[Tensor]:
    """So many tensors of 32 KiB that not all of them fit."""
    found = [x]
    for _ in range(length):
        found.append(torch.sin(found[-1]) + 0.5)
    return found


def big(seed: int = 0) -> Tensor:
    return torch.randn(8192, generator=torch.Generator().manual_seed(seed))


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


def test_evicted_tensors_are_rematerialised_whoever_asks() -> None:
    plain = chain(big())
    with context() as run:
        kept = chain(big())
        assert run.stats().evictions > 0
        assert kept[3].tolist() == plain[3].tolist()
        assert (kept[5].numpy() == plain[5].numpy()).all()
        assert str(kept[7]) == str(plain[7])
        assert torch.equal(pickle.loads(pickle.dumps(kept[9])), plain[9])
        assert torch.equal(copy.deepcopy(kept[11]), plain[11])
        file = io.BytesIO()
        torch.save(kept[13], file)
        file.seek(0)
        assert torch.equal(torch.load(file), plain[13])
        del kept[4:]


def test_leaving_rematerialises_everything_and_says_what_lies_outside() -> None:
    plain = chain(big())
    with pytest.warns(lowtide.BudgetWarning, match="did not fit into the budget"), context() as run:
        kept = chain(big())
    assert same(kept, plain)
    assert run.stats().spilled_B > 0
    assert same([t + 1 for t in kept], [t + 1 for t in plain])


def test_a_context_may_be_entered_again() -> None:
    run = context(WIDE_B)
    with run:
        a = chain(big())
    with run:
        assert same(chain(big()), a)
    assert run.stats().calls > 0


def test_budgets_do_not_nest() -> None:
    with context(WIDE_B), pytest.raises(lowtide.EagerError, match="already"), context():
        pass
    with context(WIDE_B):
        pass


def test_there_is_one_at_a_time() -> None:
    raised: list[BaseException] = []

    def other() -> None:
        try:
            with context():
                pass
        except lowtide.EagerError as error:
            raised.append(error)

    with context(WIDE_B):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "another thread" in str(raised[0])


def test_another_thread_meets_the_guard() -> None:
    found: list[str] = []

    def look(tensors: list[Tensor]) -> None:
        for tensor in tensors:
            try:
                float(tensor[0])
            except RuntimeError as error:
                found.append(str(error))

    with context():
        kept = chain(big())
        thread = threading.Thread(target=look, args=(kept,))
        thread.start()
        thread.join()
        assert torch.equal(kept[2], chain(big())[2])
        del kept
    assert found
    assert "clone()" in found[0]


def test_an_error_inside_leaves_everything_usable() -> None:
    kept: list[Tensor] = []

    def fails() -> None:
        with context():
            kept.extend(chain(big(), 8))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert same(kept, chain(big(), 8))
    with context(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        kept[0].view(64, 128) @ kept[1].view(64, 128)


def test_out_of_memory_says_who_has_the_bytes() -> None:
    with (
        context() as run,
        pytest.raises(
            torch.OutOfMemoryError, match=r"', recomputed for 'aten.cat.default' asked for .* no eviction helps"
        ),
    ):
        torch.cat([big(i) for i in range(20)])
    with run:  # and it goes on
        assert same(chain(big(), 5), chain(big(), 5))


def test_hopeless_budgets_are_refused_before_anything_moves() -> None:
    model = nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    with (
        pytest.raises(lowtide.InfeasibleBudget, match="the optimizer's state") as refusal,
        context(1_000_000, model=model, optimizer=optimizer),
    ):
        pass
    assert refusal.value.floor_B > 4 * 300 * 300 * 4
    with context(WIDE_B, model=model, optimizer=optimizer):
        pass


def test_an_interrupt_arrives_between_operators() -> None:
    x = big()
    kept: list[Tensor] = []

    def interrupted() -> None:
        with context(WIDE_B):
            for number in range(1000):
                x.add_(1)
                kept.append(x.sin())
                if number == 5:
                    os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert torch.equal(x.sin(), kept[-1])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _square(number: int) -> float:
    return float((torch.full((1000,), float(number)) ** 2).sum())


def test_forked_children_run_plainly() -> None:
    data = TensorDataset(torch.arange(4000.0).view(40, 100))
    with context(WIDE_B):
        batches = [batch.sum().item() for (batch,) in DataLoader(data, batch_size=10, num_workers=1)]
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.map(_square, [1, 2]) == [1000.0, 4000.0]
    assert sum(batches) == data.tensors[0].sum().item()


def twice(step: Callable[[], list[Tensor]], share: float = 0.75) -> None:
    """The same bits without a budget, and with a share of what it takes where everything fits."""
    torch.manual_seed(0)
    plain = step()
    state = torch.get_rng_state()
    with context(WIDE_B) as run:
        step()
    torch.manual_seed(0)
    with context(int(share * run.stats().peak_B)) as run:
        tight = step()
    assert run.stats().evictions > 0
    assert same(plain, tight)
    assert torch.equal(torch.get_rng_state(), state)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: Tensor, again: bool = False) -> Tensor:
        for layer in self.layers:
            run = block(layer)
            x = checkpoint(run, x, use_reentrant=False) if again else run(x)
        return x


def block(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: F.dropout(torch.tanh(layer(x)) * torch.sigmoid(x), 0.3)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_checkpoints_inside() -> None:
    def step() -> list[Tensor]:
        model = Wide()
        model(torch.randn(256, 32), again=True).square().sum().backward()
        return gradients(model)

    twice(step, 0.9)


def test_second_derivatives() -> None:
    def step() -> list[Tensor]:
        model = Wide()
        x = torch.randn(256, 32, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        return gradients(model)

    twice(step)


def test_autocast_and_accumulation() -> None:
    def step() -> list[Tensor]:
        model = Wide()
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.randn(256, 32)).float().square().sum()
            loss.backward()
        return gradients(model)

    twice(step)


def test_evaluation_and_parameters_written_by_hand() -> None:
    def step() -> list[Tensor]:
        model = Wide()
        outputs = []
        for _ in range(3):
            output = model(torch.randn(256, 32))
            output.square().sum().backward()
            outputs.append(output.detach()[:8].clone())
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(0.01 * parameter.grad)
                    parameter.grad.zero_()
                outputs.append(model(torch.randn(256, 32)).mean(0))
        return [*outputs, *(p.detach().clone() for p in model.parameters())]

    twice(step)


def test_tensors_stashed_by_hooks() -> None:
    def step() -> list[Tensor]:
        model, stash = Wide(), []
        for layer in model.layers:
            layer.register_forward_hook(lambda _, __, output: stash.append(output.detach()))
        model(torch.randn(256, 32)).square().sum().backward()
        assert len(stash) == 6
        return [*gradients(model), *(t.sum() for t in stash)]

    twice(step)


def test_saved_tensor_hooks_and_retained_graphs() -> None:
    def step() -> list[Tensor]:
        model = Wide()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            loss = model(torch.randn(256, 32)).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return gradients(model)

    twice(step, 0.9)


def test_compiled_parts_run_as_eager() -> None:
    def step() -> list[Tensor]:
        model = Wide()
        body = torch.compile(model, backend="eager")
        body(torch.randn(256, 32)).square().sum().backward()
        return gradients(model)

    twice(step)


def test_fitted_models_are_refused() -> None:
    model = lowtide.fit(nn.Linear(8, 8), "64MiB")
    with context(WIDE_B), pytest.raises(lowtide.EagerError, match="unfit"):
        model(torch.randn(2, 8))
    lowtide.unfit(model)


def test_shared_memory_counts() -> None:
    kept = big().numpy().copy()
    with context(WIDE_B) as run:
        looked = torch.from_numpy(kept)
        assert torch.equal(looked + 0, big())
        assert run.runtime.arena.stats().in_use_B >= looked.nbytes
        looked.add_(1)
        assert kept[0] == looked[0].item()


def test_everything_dies_with_the_program() -> None:
    run = context(WIDE_B)
    with run:
        model = Wide()
        model(torch.randn(256, 32)).square().sum().backward()
        model.zero_grad()
        del model
        gc.collect()
        torch.zeros(1) + 1
        assert run.runtime.arena.stats().in_use_B < 10_000


def test_a_trace_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    model = Wide()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    with context(WIDE_B, record=path) as run:
        for _ in range(2):
            model(torch.randn(256, 32)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    tape = load_tape(path, in_place=True)
    assert 0.5 * run.stats().peak_B < tape.peak_B <= run.stats().peak_B
    assert any(isinstance(event, Ran) and event.name == "aten.add_.Tensor" for event in tape.events)


def test_what_there_is_not() -> None:
    with pytest.raises(lowtide.EagerError, match="there is no policy"):
        context(policy="none")
    with pytest.raises(lowtide.BudgetError, match="of plain"):
        lowtide.eager("60% of plain")
