"""A language model of 32,768 tokens in a process of its own: the smallest budget that its floor names, and a run inside it.

Prints one JSON row. `python -m benchmarks.implementations.large_vocabulary MENU LIMIT`.

Units: `_B` bytes.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import nn

import lowtide
from benchmarks.implementations.rows import Menu, counted
from benchmarks.implementations.vocabulary import MENUS
from benchmarks.parts import Row, say
from benchmarks.problem_models import LossAlone
from benchmarks.results_file import fresh_profiles
from lowtide.device.heap import keep_warm
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import KINDS

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


def run(menu: Menu, limit_s: float) -> Row:
    """Finds the smallest budget, and takes a step inside it."""
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


def main() -> None:
    name, limit_s = sys.argv[1:]
    keep_warm(1 << 30)
    fresh_profiles()
    menu = next(menu for menu in MENUS if menu.name == name)
    sys.stdout.write(json.dumps(run(menu, float(limit_s))) + "\n")


if __name__ == "__main__":
    main()
