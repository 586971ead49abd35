"""One line makes transformers' `Trainer` train inside a budget, with the bits of plain training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import lowtide
from lowtide.errors import BudgetError
from tests import torchvision_shim

torchvision_shim.install()
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from lowtide.integrations.transformers import LowtideCallback  # noqa: E402

BUDGET = "80% of plain"


def make_model() -> Any:
    """A GPT-2 of one layer, with dropout."""
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=32, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return model


def rows(count: int) -> list[dict[str, torch.Tensor]]:
    """Sequences of random tokens."""
    tokens = torch.randint(0, 64, (count, 32), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in tokens]


def make_trainer(model: Any, folder: Path, *callbacks: Any, **changes: Any) -> Any:
    """Accumulates gradients, clips them, evaluates, saves and logs."""
    options = {
        "max_steps": 3, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "eval_strategy": "steps",
        "eval_steps": 1, "save_steps": 2, "logging_steps": 1, "report_to": "none", "disable_tqdm": True,
        "use_cpu": True, "seed": 2, **changes,
    }  # fmt: skip
    arguments = transformers.TrainingArguments(output_dir=str(folder), **options)
    return transformers.Trainer(model, arguments, train_dataset=rows(32), eval_dataset=rows(6), callbacks=[*callbacks])


def outcome(trainer: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Every loss and gradient norm that was logged, and the weights."""
    names = ("loss", "eval_loss", "grad_norm")
    logged = [entry[name] for entry in trainer.state.log_history for name in names if name in entry]
    return logged, {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def assert_same(found: Any, wanted: Any) -> None:
    """Compares every loss and every weight, bit by bit."""
    assert found[0] == wanted[0]
    assert found[1].keys() == wanted[1].keys()
    assert all(torch.equal(found[1][name], wanted[1][name]) for name in wanted[1])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """What plain training gives, and its folder."""
    folder = tmp_path_factory.mktemp("plain")
    trainer = make_trainer(make_model(), folder)
    trainer.train()
    return outcome(trainer), folder


def test_training_evaluation_accumulation_and_clipping_are_unchanged(expected: Any, tmp_path: Path) -> None:
    callback = LowtideCallback(BUDGET)
    trainer = make_trainer(make_model(), tmp_path, callback)
    trainer.train()
    stats = lowtide.memory_stats(trainer.model)
    assert stats.forwards == 3 * 2 + 3  # every training batch and every evaluation ran in lowtide's code
    assert 0 < stats.reserved_B <= stats.budget_B
    assert (stats.misplaced_allocations, stats.spills) == (0, 0)
    assert "optimizer state" not in " ".join(trainer.model.lowtide.plan.covers.outside)
    before = trainer.evaluate()["eval_loss"]
    callback.release()
    assert not hasattr(trainer.model, "lowtide")
    assert trainer.evaluate()["eval_loss"] == before
    found = outcome(trainer)
    assert_same((found[0][:-2], found[1]), expected[0])


def test_a_checkpoint_of_either_kind_is_resumed_by_the_other(expected: Any, tmp_path: Path) -> None:
    wanted, plain_folder = expected
    trainer = make_trainer(make_model(), tmp_path, LowtideCallback(BUDGET))
    trainer.train(resume_from_checkpoint=str(plain_folder / "checkpoint-2"))
    assert lowtide.memory_stats(trainer.model).forwards > 0
    assert_same(outcome(trainer), wanted)


def test_a_second_training_goes_on_with_the_fitted_model(tmp_path: Path) -> None:
    callback = LowtideCallback(BUDGET)
    trainer = make_trainer(make_model(), tmp_path, callback, max_steps=1, eval_strategy="no", save_strategy="no")
    trainer.train()
    handle = trainer.model.lowtide
    trainer.train()
    assert trainer.model.lowtide is handle
    callback.release()


def test_memory_is_logged_to_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = LowtideCallback(BUDGET)
    changes = {"eval_strategy": "no", "save_strategy": "no", "report_to": ["tensorboard"]}
    trainer = make_trainer(make_model(), tmp_path, callback, **changes)
    trainer.train()
    seen = EventAccumulator(str(tmp_path / "runs" / "lowtide")).Reload()
    stats = lowtide.memory_stats(trainer.model)
    assert [e.step for e in seen.Scalars("lowtide/reserved_B")][:3] == [1, 2, 3]
    assert seen.Scalars("lowtide/reserved_B")[-1].value == pytest.approx(stats.reserved_B, rel=1e-6)
    assert seen.Scalars("lowtide/predicted_B")[-1].value == pytest.approx(stats.predicted_B, rel=1e-6)
    assert seen.Scalars("lowtide/spilled_B")[-1].value == 0
    assert seen.Scalars("lowtide/overhead")[-1].value == pytest.approx(trainer.model.lowtide.plan.overhead, rel=1e-4)
    callback.release()


def test_a_malformed_budget_is_refused_when_the_callback_is_made() -> None:
    with pytest.raises(BudgetError, match="cannot read the budget"):
        LowtideCallback("lots")
