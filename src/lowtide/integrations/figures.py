"""What is worth a curve next to the loss: bytes reserved, predicted and spilled, and the overhead of the plan.

Units: `_B` bytes; overhead and gap are fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lowtide.api.memory import memory_stats
from lowtide.session.handle import Fitted

Write = Callable[[Mapping[str, float], int], None]
"""Takes figures by name, and the number of the step."""


def memory_figures(model: torch.nn.Module) -> dict[str, float]:
    """The figures of a fitted model, by the names under which they are logged.

    Arguments:
        model: fitted.

    Returns:
        `lowtide/budget_B`, `lowtide/reserved_B` (ever reserved, holes included), `lowtide/predicted_B` (the most that
        the plans said), `lowtide/in_use_B` (now), `lowtide/spilled_B` (served past the arena),
        `lowtide/misplaced_allocations` and, once there is a plan, `lowtide/overhead` and `lowtide/gap` of the latest.
        Bytes reserved and in use are 0 where the budget is accounted.

    Raises:
        LowtideError: if the model was not fitted.
    """
    stats = memory_stats(model)
    names = ("budget_B", "reserved_B", "predicted_B", "in_use_B", "spilled_B", "misplaced_allocations")
    found = {f"lowtide/{name}": float(getattr(stats, name)) for name in names}
    handle: Any = model.lowtide
    assert isinstance(handle, Fitted)
    if (plan := handle.plan) is not None:
        found |= {"lowtide/overhead": plan.overhead, "lowtide/gap": plan.gap}
    return found


def to_tensorboard(writer: Any) -> Write:
    """Writes figures as scalars of TensorBoard.

    Arguments:
        writer: a `torch.utils.tensorboard.SummaryWriter`.
    """

    def write(figures: Mapping[str, float], step: int) -> None:
        for name, figure in figures.items():
            writer.add_scalar(name, figure, step)
        writer.flush()

    return write


def to_wandb(run: Any, step_name: str = "") -> Write:
    """Writes figures to a run of Weights & Biases.

    Arguments:
        run: what `wandb.init` returned.
        step_name: the figure by which the run orders its curves (`"train/global_step"` of transformers' `Trainer`,
            `"trainer/global_step"` of Lightning); empty for the run's own steps.
    """

    def write(figures: Mapping[str, float], step: int) -> None:
        if step_name:
            run.log({**figures, step_name: step})
        else:
            run.log(dict(figures), step=step)

    return write
