"""One line makes Lightning's `Trainer` train inside a budget, with the bits of plain training."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lowtide
from lowtide.errors import ArgumentError, BudgetError
from tests import torchvision_shim

torchvision_shim.install()
L = pytest.importorskip("lightning")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import TensorBoardLogger  # noqa: E402

from lowtide.integrations.lightning import LowtideCallback  # noqa: E402

BUDGET = "85% of plain"
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec"),
    pytest.mark.filterwarnings("ignore:.*number of training batches"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(nn.Module):
    """Layers with dropout and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.dropout(F.gelu(layer(x)), 0.1, self.training)
        return self.norm(x)


class Classifier(L.LightningModule):
    """An ordinary module that knows nothing of lowtide."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.losses: list[float] = []

    def _loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return self._loss(batch)

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        self.log("validation_loss", self._loss(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def loader(count: int, seed: int) -> DataLoader[Any]:
    """Random batches of 256, in order."""
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(count, 32, generator=generator), torch.randint(0, 32, (count,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=256)


def train(folder: Path, *callbacks: Any, checkpoint: Path | None = None, epochs: int = 2, **options: Any) -> Classifier:
    """Sanity check, accumulated and clipped gradients, evaluation, a checkpoint after every epoch."""
    L.seed_everything(0, verbose=False)
    model = Classifier()
    saving = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    given = {
        "max_epochs": epochs, "accumulate_grad_batches": 2, "gradient_clip_val": 1.0, "accelerator": "cpu",
        "logger": False, "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1, **options,
    }  # fmt: skip
    trainer = L.Trainer(callbacks=[saving, *callbacks], **given)
    trainer.fit(model, loader(1024, 1), loader(256, 2), ckpt_path=checkpoint)
    return model


def assert_same(found: Classifier, wanted: Classifier, last: int | None = None) -> None:
    """Compares losses, of which the last ones may be asked for alone, and every tensor."""
    count = len(wanted.losses) if last is None else last
    assert found.losses[-count:] == wanted.losses[-count:]
    theirs = wanted.state_dict()
    assert found.state_dict().keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in found.state_dict().items())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Classifier, Path]:
    """What plain training gives, and its checkpoints."""
    folder = tmp_path_factory.mktemp("plain")
    return train(folder), folder


@pytest.mark.parametrize("options", [{}, {"num_sanity_val_steps": 0}])
def test_training_is_unchanged(plain: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    wanted = plain[0] if not options else train(tmp_path / "plain", **options)
    callback = LowtideCallback(BUDGET)
    found = train(tmp_path / "inside", callback, **options)
    assert_same(found, wanted)
    stats = lowtide.memory_stats(found.net)
    assert stats.forwards == len(found.losses)
    assert 0 < stats.reserved_B <= stats.budget_B
    assert (stats.misplaced_allocations, stats.spills) == (0, 0)
    assert "optimizer state" not in " ".join(found.net.lowtide.plan.covers.outside)
    callback.release()
    assert not hasattr(found.net, "lowtide")


def test_a_plain_checkpoint_is_resumed_inside_a_budget(plain: Any, tmp_path: Path) -> None:
    folder = plain[1]
    callback = LowtideCallback(BUDGET)
    found = train(tmp_path, callback, checkpoint=folder / "epoch=0.ckpt", num_sanity_val_steps=0)
    assert lowtide.memory_stats(found.net).forwards > 0
    resumed = train(tmp_path / "plain", checkpoint=folder / "epoch=0.ckpt", num_sanity_val_steps=0)
    assert_same(found, resumed)
    callback.release()


def test_memory_is_logged_to_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = [TensorBoardLogger(str(tmp_path), name="board")]
    callback = LowtideCallback(BUDGET)
    found = train(tmp_path / "checkpoints", callback, logger=loggers, epochs=1)
    seen = EventAccumulator(loggers[0].log_dir).Reload()
    reserved = seen.Scalars("lowtide/reserved_B")
    assert reserved[-1].value == pytest.approx(lowtide.memory_stats(found.net).reserved_B, rel=1e-6)
    assert {"lowtide/predicted_B", "lowtide/spilled_B", "lowtide/overhead"} <= set(seen.Tags()["scalars"])
    callback.release()


def test_which_network_is_asked_for_where_that_is_not_clear() -> None:
    class Two(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Linear(2, 2)

    trainer = L.Trainer(
        callbacks=[LowtideCallback(BUDGET)], logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, accelerator="cpu", max_steps=1,
    )  # fmt: skip
    with pytest.raises(ArgumentError, match='name one of net, other, as in LowtideCallback\\("6GiB", module="net"\\)'):
        trainer.fit(Two(), loader(256, 1), loader(256, 2))
    with pytest.raises(ArgumentError, match="no submodule"):
        L.Trainer(
            callbacks=[LowtideCallback(BUDGET, module="nett")], logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, accelerator="cpu", max_steps=1,
        ).fit(Two(), loader(256, 1), loader(256, 2))  # fmt: skip


def test_a_malformed_budget_is_refused_when_the_callback_is_made() -> None:
    with pytest.raises(BudgetError, match="cannot read the budget"):
        LowtideCallback("lots")
