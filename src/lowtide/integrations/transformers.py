"""transformers' `Trainer` inside a budget, by one callback.

from lowtide.integrations.transformers import LowtideCallback

trainer = Trainer(model, arguments, train_dataset=data, callbacks=[LowtideCallback("6GiB")])
"""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from lowtide.api.fit import fit, unfit
from lowtide.integrations.figures import Write, memory_figures, to_tensorboard, to_wandb
from lowtide.session.handle import Fitted
from lowtide.session.member import innermost
from lowtide.units import Budget, parse_budget


class LowtideCallback(TrainerCallback):  # type: ignore[misc]
    """Fits the trainer's model, with the trainer's optimizer, when training begins.

    The model stays fitted afterwards, so that evaluation and prediction use the budget as well and
    `lowtide.memory_stats(model)` answers; `release()` ends that.

    Whenever the trainer logs, `lowtide.integrations.figures.memory_figures` go where `report_to` says, as far as that
    is TensorBoard (in `$TENSORBOARD_LOGGING_DIR`, else in `runs/lowtide` of the output folder) or Weights & Biases.

    Arguments:
        budget: as for `lowtide.fit`: bytes, "6GiB", "60%" of the device, "60% of plain"; None if `plan=` brings it.
        log: whether to log memory.
        options: further arguments of `lowtide.fit`, as `host_budget="64GiB"` or `numerics="reassociated"`.

    Raises:
        BudgetError: if the budget is malformed.
    """

    def __init__(self, budget: int | str | Budget | None = None, *, log: bool = True, **options: Any) -> None:
        if budget is not None or "plan" not in options:
            parse_budget(budget)  # type: ignore[arg-type]
        self._budget, self._options, self._log = budget, options, log
        self._model: torch.nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._writes: list[Write] | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Fits the model; one that this callback fitted with the same optimizer is left as it is.

        Raises:
            LowtideError: see `lowtide.fit`.
        """
        model, optimizer = given["model"], innermost(given["optimizer"])
        fitted = isinstance(getattr(model, "lowtide", None), Fitted)
        if fitted and self._model is model and self._optimizer is optimizer:
            return
        fit(model, self._budget, optimizer=optimizer, **self._options)
        self._model, self._optimizer = model, optimizer

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        """Logs memory."""
        if not self._log or self._model is None or not state.is_world_process_zero:
            return
        if self._writes is None:
            self._writes = _writes(args)
        figures = memory_figures(self._model)
        for write in self._writes:
            write(figures, state.global_step)

    def release(self) -> None:
        """Makes the model a plain one again; see `lowtide.unfit`."""
        if self._model is not None:
            unfit(self._model)
        self._model = self._optimizer = None


def _writes(arguments: TrainingArguments) -> list[Write]:
    """One for each place that `report_to` names and that memory is logged to."""
    wanted = arguments.report_to
    found = []
    if "tensorboard" in wanted:
        from torch.utils.tensorboard import SummaryWriter

        folder = os.environ.get("TENSORBOARD_LOGGING_DIR") or os.path.join(arguments.output_dir, "runs", "lowtide")
        found.append(to_tensorboard(SummaryWriter(log_dir=os.path.expanduser(folder))))
    if "wandb" in wanted:
        import wandb

        if wandb.run is not None:
            found.append(to_wandb(wandb.run, "train/global_step"))
    return found
