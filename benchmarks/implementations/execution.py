"""MONeT's networks and GPT-2 executed on this machine at small batches, per level of numerics.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import nn

import lowtide
from benchmarks.executed.hard_budget_prediction import STEPS, UNLIMITED_B, train
from benchmarks.implementations.monet_networks import NETWORKS as MONET_NETWORKS
from benchmarks.implementations.problems import MONET
from benchmarks.implementations.rows import LEVELS, Menu, counted
from benchmarks.networks import SUBJECTS, loss_in
from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of, say
from benchmarks.results_file import fresh_profiles, table
from benchmarks.runner import answer_of
from benchmarks.stopwatch import interleave, ratio, spread
from lowtide.device.heap import keep_warm
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import KINDS

NETWORKS = (*MONET, "gpt2")
ALPHAS = (0.5, 0.2)
LIMIT_s = 20.0
_KEYS = tuple(f"{network}, {menu.name}" for network in NETWORKS for menu in LEVELS)
COLUMNS = (
    "network", "implementations", "alpha", "budget, MB", "of keep-all", "predicted overhead", "measured overhead",
    "spread over rounds", "predicted peak, MB", "observed peak, MB", "error", "departures and spills", "three steps",
    "others than the program's",
)  # fmt: skip
NOTE = (
    "On the processor above, operators measured, in the arena of that budget. Alpha: of the way from the proved floor to keep-all, "
    "both with the program's own implementations. Overhead: over keeping everything with them; measured as the median of "
    "interleaved forward-and-backward steps. Peak: most live bytes in the arena, parameters, batch, momentum and reserve "
    "included; its error is over what a plan can change. Three steps of SGD with momentum from the same state and seed: `torch.equal` with eager in losses, "
    "parameters, buffers and generator, or else how far off eager's state is: the norm of the distance over that of the way that "
    "three steps went; where nothing is dropped out, beside it how far eager and the plan are from the same steps in float64. "
    "MONeT's loss is the sum of all outputs, whose gradients behind batch norm cancel nearly to nothing, so that what is left "
    "of them is rounding in eager as well. Batches: ResNet-50 8, VGG-16 8, GoogLeNet and MobileNet-V2 16 images of 224 x 224, "
    "U-Net 1 of 208 x 304, a GPT-2 of 4 layers 6 x 256 tokens. Other work kept both cores busy meanwhile (load 3 to 10): bytes "
    "and bits do not depend on that, overheads do, and so do the seconds from which they were predicted."
)


class Execution:
    """One network: eager's three steps, and what it takes with the program's own implementations."""

    def __init__(self, network: str, limit_s: float) -> None:
        self.network, self.limit_s = network, limit_s
        if network in MONET_NETWORKS:
            self.build = MONET_NETWORKS[network].build
            self.batch: dict[str, Any] = {"x": MONET_NETWORKS[network].few_images()}
        else:
            self.build, self.batch = SUBJECTS[network].build, SUBJECTS[network].batch()
        model = self.fresh()
        self.start = {k: v.clone() for k, v in model.state_dict().items()}
        optimizer = _optimizer(model)
        self.plain = lowtide.plan(
            model, kwargs=self.batch, budget=UNLIMITED_B, optimizer=optimizer, without=KINDS, time_limit_s=limit_s
        )
        torch.manual_seed(7)
        self.losses = train(model, optimizer, self.batch, STEPS, _loss)
        self.right = state_of(model)

    def fresh(self) -> nn.Module:
        """The network from the seed."""
        torch.manual_seed(0)
        return self.build()

    def fitted(self, budget_B: int, menu: Menu) -> tuple[nn.Module, torch.optim.Optimizer]:
        """A network inside a budget, as it began."""
        model = self.fresh()
        optimizer = _optimizer(model)
        lowtide.fit(
            model,
            budget=budget_B,
            optimizer=optimizer,
            numerics=menu.numerics or Numerics.EXACT,
            without=KINDS if menu.numerics is None else menu.without,
            time_limit_s=self.limit_s,
        )
        return model, optimizer

    def row(self, menu: Menu, alpha: float, rounds: int) -> Row:
        """Trains three steps inside a budget, compares, and times steps against keeping everything."""
        floor_B, most_B = self.plain.floor_B, self.plain.reserved_B
        budget_B = floor_B + int(alpha * (most_B - floor_B))
        head: Row = {
            "network": self.network, "menu": menu.name, "alpha": alpha, "budget_B": budget_B, "plain_B": most_B,
        }  # fmt: skip
        model, optimizer = self.fitted(budget_B, menu)
        torch.manual_seed(7)
        try:
            losses = train(model, optimizer, self.batch, 1, _loss)
            plan = model.lowtide.plan  # of before the first step: nothing plans anew within one
            losses += train(model, optimizer, self.batch, STEPS - 1, _loss)
        except lowtide.InfeasibleBudget as error:
            return head | {"smallest_B": error.smallest_B, "result": "no plan"}
        result = self.difference(losses, state_of(model))
        seen = lowtide.memory_stats(model)
        say(f"  {self.network}, {menu.name}, alpha {alpha:g}: {plan.overhead:+.2%}, {result}")
        times = self.timed(model, rounds)
        return head | {
            "predicted": plan.overhead,
            "measured": ratio(times["planned"], times["keep-all"]) - 1.0,
            "spread": spread(times["planned"], times["keep-all"]),
            "peak_B": plan.record.peak_B,
            "observed_B": seen.peak_B,
            "error": (seen.peak_B - plan.record.peak_B) / (plan.record.peak_B - plan.record.fixed_B),
            "spills": seen.misplaced_allocations + seen.spills,
            "result": result,
            "chosen": counted(plan.record.graph, plan.record.schedule),
        }

    def timed(self, model: nn.Module, rounds: int) -> Any:
        """Forward and backward of a planned network and of one that keeps everything, each in its own arena."""
        whole, _ = self.fitted(int(1.05 * self.plain.reserved_B), LEVELS[0])

        def of(module: nn.Module) -> Callable[[], Callable[[], object]]:
            def step() -> None:
                _loss(module, self.batch).backward()

            def prepare() -> Callable[[], object]:
                module.zero_grad(set_to_none=True)
                return step

            return prepare

        return interleave({"planned": of(model), "keep-all": of(whole)}, rounds)

    def difference(self, losses: list[torch.Tensor], found: dict[str, torch.Tensor]) -> str:
        """ "equal" where every bit of losses and state is; else by how much the state is off."""
        same = all(torch.equal(a, b) for a, b in zip(losses, self.losses, strict=True))
        if same and all(torch.equal(found[name], right) for name, right in self.right.items()):
            return "equal"
        text = f"off by {self.apart(found, self.right):.1e} of the way that three steps went"
        if self.is_random:
            return text
        exact = self.in_float64
        return (
            f"{text}; from float64: eager {self.apart(self.right, exact):.1e}, planned {self.apart(found, exact):.1e}"
        )

    def apart(self, found: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
        """The norm of the distance between two states, over the norm of the way from the start to the right one."""
        moved = {n: t for n, t in right.items() if n in self.start and t.is_floating_point()}
        off = sum(float((found[n].double() - t.double()).square().sum()) for n, t in moved.items())
        candidate = sum(float((t.double() - self.start[n].double()).square().sum()) for n, t in moved.items())
        return (off / candidate) ** 0.5

    @cached_property
    def is_random(self) -> bool:
        """Whether it drops out, with which float64 would draw other numbers."""
        return any(isinstance(m, nn.Dropout) and m.p > 0 for m in self.fresh().modules())

    @cached_property
    def in_float64(self) -> dict[str, torch.Tensor]:
        """Where eager's three steps end in float64."""
        model = self.fresh().double()
        batch = {k: v.double() if v.is_floating_point() else v for k, v in self.batch.items()}
        torch.manual_seed(7)
        train(model, _optimizer(model), batch, STEPS, _loss)
        return state_of(model)


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of parameters, buffers and the generator's state."""
    return {**{k: v.detach().clone() for k, v in model.state_dict().items()}, "generator": torch.get_rng_state()}


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Small steps, for the loss is a sum; and no Adam, which takes whole steps along gradients that are rounding alone."""
    return torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)


def _loss(module: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    return loss_in(module(**batch))


def execute(network: str, name: str, alphas: list[float], rounds: int, limit_s: float) -> list[Row]:
    """The rows of a network with one menu, in a process of its own."""
    keep_warm(1 << 30)
    fresh_profiles()
    menu = next(menu for menu in LEVELS if menu.name == name)
    execution = Execution(network, limit_s)
    return [execution.row(menu, alpha, rounds) for alpha in alphas]


def measure(key: str, effort: Effort) -> list[Row]:
    """One network with one menu, in a process of its own.

    Raises:
        RuntimeError: if it failed.
    """
    network, menu = key.split(", ")
    alphas = ALPHAS[:1] if effort.quick else ALPHAS
    limit_s = min(LIMIT_s, effort.limit_s)
    rows: list[Row] = answer_of(execute, network, menu, alphas, effort.rounds, limit_s, quiet=False)
    return rows


def tables(found: Found) -> list[str]:
    """One row per network, menu and budget."""
    rows = rows_of(found, _KEYS)
    return [table("Executed", COLUMNS, [_line(row) for row in rows], len(rows), NOTE)] if rows else []


def _line(row: Row) -> list[object]:
    head = [row["network"], row["menu"], row["alpha"], _mb(row["budget_B"]), f"{row['budget_B'] / row['plain_B']:.0%}"]
    if "predicted" not in row:
        smallest = row["smallest_B"]
        return [*head, "no plan" if smallest is None else f"no plan below {_mb(smallest)}", *["-"] * 8]
    chosen = ", ".join(f"{count} {kind}" for kind, count in sorted(row["chosen"].items())) or "none"
    return [
        *head, percent(row["predicted"]), percent(row["measured"]), row["spread"], _mb(row["peak_B"]),
        _mb(row["observed_B"]), f"{row['error']:+.2%}", row["spills"], row["result"], chosen,
    ]  # fmt: skip


def _mb(size_B: float) -> str:
    return f"{size_B / 1e6:.1f}"


def broken(found: Found) -> list[str]:
    """Rows at level exact whose bits are not eager's."""
    return [
        f"{row['network']}, {row['menu']}, alpha {row['alpha']}: {row['result']}"
        for row in rows_of(found, _KEYS)
        if row["menu"] != LEVELS[-1].name and row["result"] not in ("equal", "no plan")
    ]


EXECUTION_PART = Part("executed", _KEYS, measure, tables)
