"""Language models of 32,768 tokens and more: the proved floor and the smallest budget, with and without the chunked loss.

Units: `_B` bytes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

import lowtide
from benchmarks.implementations.levels import least_B
from benchmarks.implementations.rows import LEVELS, SCHEDULE_ONLY, Menu, case, counted, planned, summary
from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of, say
from benchmarks.problem_models import LossAlone
from benchmarks.results_file import fresh_profiles, table
from benchmarks.runner import answer_of
from lowtide.device.heap import keep_warm
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import KINDS, LOSS

MENUS = (
    SCHEDULE_ONLY,
    Menu("exact without the loss", Numerics.EXACT, (LOSS,)),
    LEVELS[1],
    Menu("reassociated without the loss", Numerics.REASSOCIATED, (LOSS,)),
    LEVELS[2],
)
_PLANNED, _EXECUTED = "GPT-2, planned", "small GPT-2, executed"
_KEYS = tuple(f"{what}, {menu.name}" for what in (_PLANNED, _EXECUTED) for menu in MENUS)
_LOGITS_B = 8 * 1024 * 50_257 * 4
COLUMNS = (
    "model", "implementations", "logits, MB", "kept whole, MB", "proved floor, MB", "smallest budget, MB", "over the floor",
    "of the logits", "overhead there", "observed peak, MB", "step", "others than the program's",
)  # fmt: skip
NOTE = (
    "GPT-2: 12 layers, 50,257 tokens in its vocabulary, 8 x 1024 of them, planned for an A100. Executed: two layers of width 128, "
    "32,768 in its vocabulary, 8 x 128 of them, one step inside the smallest budget, reserve included. The floor holds for every "
    "schedule and every choice from the row's implementations. Step: loss and gradients beside eager's, bit by bit."
)


VOCABULARY, COUNT, LENGTH = 32_768, 8, 128
_UNLIMITED_B = 2**50
_TRIES = 4


def build() -> nn.Module:
    """A GPT-2 of two narrow layers, so that its logits are most of what it takes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=128, n_head=4, vocab_size=VOCABULARY, n_positions=LENGTH, use_cache=False, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return LossAlone(model).train()


def batch() -> dict[str, Any]:
    """Tokens from a fixed seed."""
    tokens = torch.randint(0, VOCABULARY, (COUNT, LENGTH), generator=torch.Generator().manual_seed(1))
    return {"input_ids": tokens, "labels": tokens}


def step(model: nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss and the gradients of one step."""
    model.zero_grad(set_to_none=True)
    loss = model(**inputs)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return loss.detach().clone(), gradients


def run_inside(name: str, limit_s: float) -> Row:
    """Finds the smallest budget, and takes a step inside it, in a process of its own."""
    keep_warm(1 << 30)
    fresh_profiles()
    menu = next(menu for menu in MENUS if menu.name == name)
    inputs = batch()
    options: dict[str, Any] = {
        "numerics": menu.numerics or Numerics.EXACT,
        "without": KINDS if menu.numerics is None else menu.without,
        "time_limit_s": limit_s,
    }
    plain = build()
    whole = lowtide.plan(plain, kwargs=inputs, budget=_UNLIMITED_B, **options)
    loss, right = step(plain, inputs)
    smallest_B, floor_B = _smallest(plain, inputs, whole.floor_B, options)
    say(f"  {menu.name}: floor {floor_B / 1e6:.1f} MB, smallest {smallest_B / 1e6:.1f} MB")
    model, smallest_B, (found_loss, found) = _stepped(inputs, smallest_B, options)
    off = sum(float((found[n].double() - g.double()).square().sum()) for n, g in right.items())
    candidate = sum(float(g.double().square().sum()) for g in right.values())
    equal = torch.equal(found_loss, loss) and all(torch.equal(found[n], g) for n, g in right.items())
    plan = model.lowtide.plan
    return {
        "menu": menu.name,
        "logits_B": COUNT * LENGTH * VOCABULARY * 4,
        "plain_B": whole.reserved_B,
        "floor_B": floor_B,
        "smallest_B": smallest_B,
        "observed_B": lowtide.memory_stats(model).peak_B,
        "overhead": plan.overhead,
        "result": "equal" if equal else f"gradients off by {(off / candidate) ** 0.5:.1e}",
        "chosen": counted(plan.record.graph, plan.record.schedule),
    }


def _smallest(model: nn.Module, inputs: dict[str, Any], budget_B: int, options: dict[str, Any]) -> tuple[int, int]:
    """The smallest budget that is known to do, and the floor: what is set aside shrinks with the budget, and both with it."""
    smallest_B = floor_B = budget_B
    for _ in range(_TRIES):
        try:
            plan = lowtide.plan(model, kwargs=inputs, budget=budget_B, **options)
        except lowtide.InfeasibleBudget as error:
            return error.smallest_B or smallest_B, floor_B
        smallest_B, floor_B = plan.reserved_B, plan.floor_B
        if floor_B >= budget_B:
            break
        budget_B = floor_B
    return smallest_B, floor_B


def _stepped(inputs: dict[str, Any], budget_B: int, options: dict[str, Any]) -> tuple[nn.Module, int, Any]:
    """A step inside the smallest budget that runs: a search of its own may end some bytes away from an earlier one.

    Raises:
        InfeasibleBudget: if none does after some tries.
    """
    for last in (*[False] * (_TRIES - 1), True):
        model = lowtide.fit(build(), budget=budget_B, **options)
        try:
            return model, budget_B, step(model, inputs)
        except lowtide.InfeasibleBudget as error:
            if last or error.smallest_B is None:
                raise
            budget_B = max(error.smallest_B, budget_B + 1)
    raise AssertionError("the last try returns or raises")


def measure(key: str, effort: Effort) -> list[Row]:
    """One model with one menu."""
    what, name = next((w, key.removeprefix(f"{w}, ")) for w in (_PLANNED, _EXECUTED) if key.startswith(w))
    if what == _EXECUTED:
        row: Row = answer_of(run_inside, name, effort.limit_s, quiet=False)
        return [row | {"model": what}]
    subject = case("gpt2", next(menu for menu in MENUS if menu.name == name))
    point, _ = planned(subject, "floor", subject.floor_B, effort.limit_s)
    if point.time_s is None:
        close_B = subject.plain_B // 10 if effort.quick else subject.floor_B // 100
        found, _ = least_B(subject, math.inf, effort.limit_s, close_B)
        point = point if found is None else found
    say(f"{key}: {summary(point)}")
    return [
        {
            "model": what, "menu": name, "logits_B": _LOGITS_B, "plain_B": subject.plain_B, "floor_B": subject.floor_B,
            "smallest_B": point.peak_B, "observed_B": None, "overhead": point.overhead, "result": "-",
            "chosen": point.chosen,
        }
    ]  # fmt: skip


def tables(found: Found) -> list[str]:
    """One row per model and menu."""
    rows = rows_of(found, _KEYS)
    return [table("Large vocabularies", COLUMNS, [_line(row) for row in rows], len(rows), NOTE)] if rows else []


def _line(row: Row) -> list[object]:
    smallest_B, observed_B = row["smallest_B"], row["observed_B"]
    sizes = [_mb(row[k]) for k in ("logits_B", "plain_B", "floor_B")]
    ratios = ["none", "none"] if smallest_B is None else [f"{smallest_B / row[k]:.3f}" for k in ("floor_B", "logits_B")]
    chosen = ", ".join(f"{count} {kind}" for kind, count in sorted(row["chosen"].items())) or "none"
    return [
        row["model"], row["menu"], *sizes, "none" if smallest_B is None else _mb(smallest_B), *ratios,
        percent(row["overhead"]), "-" if observed_B is None else _mb(observed_B), row["result"], chosen,
    ]  # fmt: skip


def _mb(size_B: float) -> str:
    return f"{size_B / 1e6:.1f}"


VOCABULARY_PART = Part("vocabulary", _KEYS, measure, tables)
