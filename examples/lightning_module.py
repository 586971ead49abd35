"""Train a LightningModule inside a budget, in two ways, and see that nothing else changed.

Run: python examples/lightning_module.py     (needs lightning)
"""

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Literal

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lowtide

BUDGET = "80% of plain"
Method = Literal["plain", "fit", "compile"]
Result = tuple[list[float], dict[str, torch.Tensor]]  # losses, and the weights at the end

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", ".*(does not have many workers|isinstance.treespec, LeafSpec).*")


class Net(nn.Module):
    """Layers with dropout; the loss is inside, so that the plan spans all of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.dropout(F.gelu(layer(x)), 0.1, self.training)
        return F.cross_entropy(self.head(x), y)


class Classifier(L.LightningModule):
    """An ordinary module; the only lines about lowtide are in `configure_optimizers`."""

    def __init__(self, method: Method = "plain") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.method = method
        self.net = Net()
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = self.net(*batch)
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        loss = self.net(*batch)
        self.log("validation_loss", loss)
        self.losses.append(loss.item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.parameters())
        if self.method == "fit":  # here the model is on its device, and the optimizer is known: its state counts
            lowtide.fit(self.net, budget=BUDGET, optimizer=optimizer)
        elif self.method == "compile":  # in torch's own words; the optimizer's state lies outside
            self.net.compile(backend="lowtide", options={"budget": BUDGET})
        return optimizer


def loader(count: int, seed: int) -> DataLoader:
    """Random batches of 256."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 64, generator=generator)
    y = torch.randint(0, 10, (count,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=256)


def train(method: Method, folder: Path) -> Result:
    """Automatic optimisation with accumulated and clipped gradients, evaluation, and a checkpoint callback."""
    L.seed_everything(0, verbose=False)
    model = Classifier(method)
    trainer = L.Trainer(
        max_epochs=1,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        accelerator="cpu",
        callbacks=[ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader(1024, seed=1), loader(256, seed=2))
    if method == "fit":
        print("lowtide.fit:", model.net.lowtide.plan)
        print("lowtide.fit:", lowtide.memory_stats(model.net))
    return model.losses, {name: tensor.clone() for name, tensor in model.state_dict().items()}


def check(name: str, found: Result, wanted: Result) -> None:
    """Compares every loss and every weight, bit by bit."""
    assert found[0] == wanted[0], f"{name}: {found[0]} is not {wanted[0]}"
    assert found[1].keys() == wanted[1].keys()
    assert all(torch.equal(found[1][key], wanted[1][key]) for key in wanted[1]), name
    print(f"{name}: {len(found[0])} losses and {len(found[1])} tensors equal to plain training")


with tempfile.TemporaryDirectory() as home:
    folders = {name: Path(home) / name for name in ("plain", "fit", "compile")}
    expected = train("plain", folders["plain"])
    check("lowtide.fit", train("fit", folders["fit"]), expected)
    check("torch.compile", train("compile", folders["compile"]), expected)

    saved = Classifier.load_from_checkpoint(folders["fit"] / "epoch=0.ckpt")
    assert all(torch.equal(tensor, expected[1][key]) for key, tensor in saved.state_dict().items())
    print("the checkpoint that training inside the budget saved is an ordinary one")
