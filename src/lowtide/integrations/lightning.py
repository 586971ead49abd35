"""Lightning's `Trainer` inside a budget, by one callback.

from lowtide.integrations.lightning import LowtideCallback

trainer = L.Trainer(max_epochs=3, callbacks=[LowtideCallback("6GiB")])
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from lowtide.api.fit import fit, unfit
from lowtide.errors import ArgumentError
from lowtide.integrations.figures import Write, memory_figures, to_tensorboard, to_wandb
from lowtide.session.handle import Fitted
from lowtide.session.member import innermost
from lowtide.units import Budget, parse_budget


class LowtideCallback(L.Callback):  # type: ignore[misc]
    """Fits the network of a `LightningModule`, with its optimizer, before the first batch.

    Lightning calls `training_step`, which is no forward: what is fitted is the network that `training_step` calls, a
    submodule. It stays fitted, so that testing and prediction use the budget as well; `release()` ends that.

    At every training batch for which Lightning logs, `lowtide.integrations.figures.memory_figures` go to those of the
    trainer's loggers that are TensorBoard's or Weights & Biases'.

    Arguments:
        budget: as for `lowtide.fit`: bytes, "6GiB", "60%" of the device, "60% of plain"; None if `plan=` brings it.
        module: name of the submodule, as `named_modules` has it; None for the only one directly in the
            `LightningModule` that has parameters.
        log: whether to log memory.
        options: further arguments of `lowtide.fit`, as `host_budget="64GiB"` or `numerics="reassociated"`.

    Raises:
        BudgetError: if the budget is malformed.
    """

    def __init__(
        self,
        budget: int | str | Budget | None = None,
        *,
        module: str | None = None,
        log: bool = True,
        **options: Any,
    ) -> None:
        if budget is not None or "plan" not in options:
            parse_budget(budget)  # type: ignore[arg-type]
        self._budget, self._module, self._options, self._log = budget, module, options, log
        self._model: torch.nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Fits the network before the validation batches with which Lightning begins."""
        self._fit(trainer, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Fits the network, unless the sanity check has."""
        self._fit(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs memory."""
        if not self._log or self._model is None or trainer.global_step % trainer.log_every_n_steps:
            return
        figures = memory_figures(self._model)
        for write in _writes(trainer):
            write(figures, trainer.global_step)

    def release(self) -> None:
        """Makes the network a plain one again; see `lowtide.unfit`."""
        if self._model is not None:
            unfit(self._model)
        self._model = self._optimizer = None

    def _fit(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Fits the network once for one optimizer.

        Raises:
            ArgumentError: if it is not clear which submodule to fit, or there are several optimizers.
            LowtideError: see `lowtide.fit`.
        """
        optimizers = [innermost(optimizer) for optimizer in trainer.optimizers]
        if len(optimizers) > 1:
            raise ArgumentError(
                f"{type(pl_module).__name__} has {len(optimizers)} optimizers, and one network of it was to be fitted: "
                "call lowtide.fit(network, budget=..., optimizer=...) for each in configure_optimizers, with share= "
                "for the second, and leave the callback out"
            )
        model, optimizer = _network(pl_module, self._module), optimizers[0] if optimizers else None
        fitted = isinstance(getattr(model, "lowtide", None), Fitted)
        if fitted and self._model is model and self._optimizer is optimizer:
            return
        fit(model, self._budget, optimizer=optimizer, **self._options)
        self._model, self._optimizer = model, optimizer


def _network(pl_module: L.LightningModule, name: str | None) -> torch.nn.Module:
    """The submodule to fit.

    Raises:
        ArgumentError: if there is none of that name, or no name and not one alone.
    """
    if name is not None:
        found: torch.nn.Module | None = dict(pl_module.named_modules()).get(name)
        if found is None or found is pl_module:
            raise ArgumentError(f"module={name!r} is no submodule of {type(pl_module).__name__}: {_choices(pl_module)}")
        return found
    children: list[torch.nn.Module] = [
        child for child in pl_module.children() if next(child.parameters(), None) is not None
    ]
    if len(children) != 1 or next(pl_module.parameters(recurse=False), None) is not None:
        raise ArgumentError(
            f"{type(pl_module).__name__} does not have its parameters in one submodule, and Lightning calls "
            f"training_step, which cannot be captured: put what it calls into one nn.Module. {_choices(pl_module)}"
        )
    return children[0]


def _choices(pl_module: L.LightningModule) -> str:
    names = [name for name, child in pl_module.named_children() if next(child.parameters(), None) is not None]
    return f'name one of {", ".join(names) or "none"}, as in LowtideCallback("6GiB", module="net")'


def _writes(trainer: L.Trainer) -> list[Write]:
    """One for each logger that memory is logged to; on other processes than the first, loggers write nothing."""
    found = []
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            found.append(to_tensorboard(logger.experiment))
        elif isinstance(logger, WandbLogger):
            found.append(to_wandb(logger.experiment, "trainer/global_step"))
    return found
