"""One network of the ecosystem: trained plainly, then inside a hard budget at every budget.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import lowtide
from benchmarks.executed.hard_budget_prediction import UNLIMITED_B, Bits, bits_of, prediction_error, resident_B, train
from benchmarks.fidelity.ecosystem_networks import NETWORKS, TARGET, Network
from benchmarks.results_file import fresh_profiles
from benchmarks.runner import HandOver
from benchmarks.stopwatch import interleave, ratio
from lowtide.device import shim
from lowtide.device.heap import keep_warm
from lowtide.device.observer import observe
from lowtide.results.plan import Plan

STEPS = 2
KEEP_ALL = "keep-all"
Label = float | str
_TIMING_S = 12.0  # for all interleaved steps of one network
_LEAST_ROUNDS, _MOST_ROUNDS = 2, 7
_SLOW_S = 1.0  # a step so slow needs no round to warm up; the arena is warm from those before


class Stage:
    """A model that trains plainly first, then in an arena for every budget, each time from the same start."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.begun_s = time.perf_counter()
        self.model, self.batch = network.build(), network.batch()
        self.inputs = {k: v for k, v in self.batch.items() if k != TARGET}
        self.start = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.expected, self.plain_B = self._plainly()
        self.optimizer = network.optimizer_for(self.model)
        self.untrained = self.optimizer.state_dict()
        self._compiled: Bits | None = None

    def say(self, text: str) -> None:
        """Progress, with the seconds since this network began."""
        sys.stderr.write(f"  {self.network.name} {time.perf_counter() - self.begun_s:6.1f} s: {text}\n")
        sys.stderr.flush()

    def train(self, optimizer: torch.optim.Optimizer, steps: int) -> list[torch.Tensor]:
        """Some steps; returns the losses."""
        return train(self.model, optimizer, self.batch, steps, self.network.loss_of)

    def _plainly(self) -> tuple[Bits, int]:
        """What plain PyTorch leaves behind, and the most bytes that it holds at once."""
        optimizer = self.network.optimizer_for(self.model)
        torch.manual_seed(7)
        with observe() as seen:
            losses = self.train(optimizer, STEPS)
        optimizer.zero_grad()
        bits = bits_of(self.model, losses)
        self.say("trained plainly")
        return bits, resident_B(self.model, self.inputs) + seen.peak_B

    def restart(self) -> None:
        """Parameters, buffers, optimizer state and gradients as before the first step."""
        self.model.load_state_dict(self.start)
        self.optimizer.load_state_dict(self.untrained)
        self.optimizer.zero_grad()
        torch.manual_seed(7)

    def plan(self) -> Plan:
        """The plan in force; of several, where data decide what follows a graph break, the one that reserves most."""
        return max(self.model.lowtide.plans, key=lambda plan: plan.reserved_B)

    def forward_s(self) -> float:
        """Seconds of a forward, planning included where a plan is missing; its backward follows untimed."""
        begin = time.perf_counter()
        loss = self.network.loss_of(self.model, self.batch)
        elapsed_s = time.perf_counter() - begin
        loss.backward()
        self.optimizer.zero_grad()
        return elapsed_s

    def capture(self) -> dict[str, Any]:
        """Fits the model without a limit. Returns what is known then."""
        lowtide.fit(self.model, budget=UNLIMITED_B, optimizer=self.optimizer)
        self.restart()
        first_s = self.forward_s()
        warm_s = self.forward_s()
        dynamo_s = torch._dynamo.utils.calculate_time_spent()["entire_frame_compile"]
        self.keep_all = self.plan()
        self.say(f"captured in {dynamo_s:.1f} s, measured and planned in {first_s - warm_s - dynamo_s:.1f} s")
        self.smallest_B = self._smallest_B()
        record = self.keep_all.record
        return {
            "operators": len(record.graph.program), "graphs": len(record.graph.segments) // 2,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "capture_s": dynamo_s, "measure_s": first_s - warm_s - dynamo_s,
            "persistent_B": record.fixed_B - record.reserve_B, "floor_B": self.keep_all.floor_B,
            "smallest_B": self.smallest_B, "keep_all_B": self.keep_all.reserved_B, "plain_B": self.plain_B,
        }  # fmt: skip

    def _smallest_B(self) -> int:
        """The budget that the error of the floor tells to use; the floor where a plan fits into it."""
        self.model.lowtide.set_budget(self.keep_all.floor_B)
        try:
            self.forward_s()
        except lowtide.InfeasibleBudget as error:
            return error.smallest_B or self.keep_all.reserved_B
        return self.keep_all.floor_B

    def row(self, label: Label) -> tuple[dict[str, Any], Plan | None]:
        """Plans for a budget, trains from the start in an arena of that size, and compares."""
        most_B = self.keep_all.reserved_B
        budget_B = most_B if isinstance(label, str) else int(self.smallest_B + label * (most_B - self.smallest_B))
        row: dict[str, Any] = {"alpha": label, "budget_B": budget_B}
        self.model.lowtide.set_budget(budget_B)
        self.restart()
        try:
            said, losses, plan_s = self._trained()
        except lowtide.InfeasibleBudget as error:
            return row | {"failure": message_of(error)}, None
        seen = lowtide.memory_stats(self.model)
        return row | {
            "predicted_B": said.reserved_B, "observed_B": seen.reserved_B,
            "error": prediction_error(said.record, seen.reserved_B), "kind": seen.budget_kind,
            "bits": self._verdict(bits_of(self.model, losses)), "gap": said.gap, "overhead": said.overhead,
            "plan_s": plan_s, "departures": seen.misplaced_allocations, "spills": seen.spills,
            "hits": seen.planned_hits,
        }, said  # fmt: skip

    def _trained(self) -> tuple[Plan, list[torch.Tensor], float]:
        """Two steps. Returns the plan, the losses, and what the first forward took longer than the second."""
        losses, seconds_s, said = [], [], None
        for _ in range(STEPS):
            begin = time.perf_counter()
            loss = self.network.loss_of(self.model, self.batch)
            seconds_s.append(time.perf_counter() - begin)
            said = said or self.plan()  # of before the first step: nothing plans anew within one
            loss.backward()
            losses.append(loss.detach().clone())
            self.optimizer.step()
            self.optimizer.zero_grad()
            del loss
        assert said is not None
        return said, losses, max(0.0, seconds_s[0] - seconds_s[-1])

    def _verdict(self, found: Bits) -> str:
        """ "equal" to plain PyTorch; "as compiled": to what torch's own capture makes of the model; or "DIFFERENT"."""
        if self.expected.equal(found):
            return "equal"
        if self._compiled is None:
            self._compiled = self._as_compiled()
        return "as compiled" if self._compiled.equal(found) else "DIFFERENT"

    def _as_compiled(self) -> Bits:
        """What the same steps leave under `torch.compile(backend="aot_eager")`, without lowtide.

        Code that asks whether it is being compiled takes another path there than in plain PyTorch.
        """
        model = copy.deepcopy(self.model)  # a copy of a fitted model is a plain one
        model.load_state_dict(self.start)
        optimizer = self.network.optimizer_for(model)
        call = torch.compile(model, backend="aot_eager")
        torch.manual_seed(7)
        return bits_of(model, train(call, optimizer, self.batch, STEPS, self.network.loss_of))  # type: ignore[arg-type]

    def measured(self, plans: dict[str, Plan]) -> dict[str, Any]:
        """Forward and backward of every plan over keeping everything, in turn, all in the arena of keep-all's size."""
        self.model.lowtide.set_budget(self.keep_all.reserved_B)
        self.restart()
        self.forward_s()
        begin = time.perf_counter()
        self.forward_s()
        step_s = time.perf_counter() - begin
        variants = {name: self._variant(plan) for name, plan in plans.items()}
        variants["again"] = self._variant(plans[KEEP_ALL])
        rounds = int(_TIMING_S / (1.2 * step_s * len(variants))) - 1
        rounds = min(_MOST_ROUNDS, max(_LEAST_ROUNDS, rounds))
        found = interleave(variants, rounds, warmups=int(step_s < _SLOW_S))
        return {
            "step_s": found[KEEP_ALL].median_s,
            "rounds": rounds,
            "ratios": {name: ratio(times, found[KEEP_ALL]) for name, times in found.items()},
        }

    def _variant(self, plan: Plan) -> Callable[[], Callable[[], None]]:
        def run() -> None:
            self.network.loss_of(self.model, self.batch).backward()

        def prepare() -> Callable[[], None]:
            self.optimizer.zero_grad()
            self.model.lowtide.use(plan)
            return run

        return prepare


def measure(hand_over: HandOver, name: str, labels: list[Label]) -> None:
    """Everything about one network, in a process of its own; each fact when it is known, so that it stays if something fails later."""
    keep_warm(1 << 30)
    fresh_profiles()
    shim.load()  # so that its events show plain PyTorch's bytes too
    stage = Stage(NETWORKS[name])
    hand_over({"kind": "network", "content": stage.capture()})
    plans: dict[str, Plan] = {}
    for label in labels:
        row, plan = stage.row(label)
        if plan is not None:
            plans[str(label)] = plan
        hand_over({"kind": "row", "content": row})
        stage.say(f"alpha {label}: " + (row.get("failure") or f"{row['bits']}, planned in {row['plan_s']:.1f} s"))
    if KEEP_ALL in plans:
        hand_over({"kind": "measured", "content": stage.measured(plans)})
    stage.say("done")


def message_of(error: BaseException) -> str:
    """An error's kind and the first lines of its text."""
    return brief(f"{type(error).__name__}: {error}")


def brief(message: str) -> str:
    """The first lines of what an error said, for a cell of a table."""
    kind, _, text = message.partition(": ")
    text = " ".join(text.split()).replace("|", "/")  # tables are made of bars
    return f"{kind}: {text[:300]}{'...' if len(text) > 300 else ''}"
