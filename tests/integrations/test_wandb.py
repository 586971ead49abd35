"""Memory goes to a real run of Weights & Biases, offline: of either framework, and by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lowtide
from lowtide.integrations.figures import memory_figures, to_wandb
from tests import torchvision_shim
from tests.integrations.test_lightning import BUDGET as LIGHTNING_BUDGET
from tests.integrations.test_lightning import train
from tests.integrations.test_transformers import BUDGET, make_model, make_trainer

torchvision_shim.install()
wandb = pytest.importorskip("wandb")

from lightning.pytorch.loggers import WandbLogger  # noqa: E402

from lowtide.integrations.lightning import LowtideCallback as LightningCallback  # noqa: E402
from lowtide.integrations.transformers import LowtideCallback  # noqa: E402

NAMES = {"lowtide/reserved_B", "lowtide/predicted_B", "lowtide/spilled_B", "lowtide/overhead"}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs are written here and sent nowhere."""
    for name, text in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, text)
    yield
    wandb.finish()


def summary(run: Any) -> dict[str, float]:
    """The last figure of each name in a run."""
    return {name: run.summary[name] for name in NAMES}


def test_by_hand() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.randn(256, 64)
    lowtide.fit(model, budget="100% of plain")
    model(x).sum().backward()
    run = wandb.init()
    to_wandb(run)(memory_figures(model), 7)
    run.log({"loss": 1.0}, step=8)  # a row is written when the next one begins
    assert summary(run) == {name: memory_figures(model)[name] for name in NAMES}


def test_of_transformers_trainer(tmp_path: Path) -> None:
    callback = LowtideCallback(BUDGET)
    changes = {"eval_strategy": "no", "save_strategy": "no", "report_to": ["wandb"], "max_steps": 2}
    trainer = make_trainer(make_model(), tmp_path, callback, **changes)
    trainer.train()
    found = summary(wandb.run)
    assert found["lowtide/reserved_B"] == lowtide.memory_stats(trainer.model).reserved_B
    assert found["lowtide/overhead"] == trainer.model.lowtide.plan.overhead
    assert wandb.run.summary["train/global_step"] == 2
    callback.release()


@pytest.mark.breadth
def test_of_lightnings_trainer(tmp_path: Path) -> None:
    logger, callback = WandbLogger(save_dir=str(tmp_path), offline=True), LightningCallback(LIGHTNING_BUDGET)
    found = train(tmp_path / "checkpoints", callback, logger=logger, epochs=1)
    assert summary(logger.experiment)["lowtide/reserved_B"] == lowtide.memory_stats(found.net).reserved_B
    callback.release()
