"""Loss curves at level reassociated beside plain ones, and how far either is from float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from tests import torchvision_shim
from torch import nn

import lowtide
from benchmarks.implementations.rows import counted
from benchmarks.parts import Effort, Found, Part, Row, rows_of, say
from benchmarks.results_file import fresh_profiles, table
from benchmarks.runner import answer_of
from lowtide.device.heap import keep_warm
from lowtide.ir.graph import Graph
from lowtide.ir.numerics import Numerics
from lowtide.ir.schedule import Run, Schedule
from lowtide.ops.base import KINDS
from lowtide.planners.implementations.choice import chosen_options

torchvision_shim.install()

NETWORKS = ("U-Net", "GPT-2 of two layers")
STEPS = 100
ALPHAS = {"U-Net": 0.5, "GPT-2 of two layers": 0.1}
_AT = (1, 10, 25, 50, 75, 100)
COLUMNS = ("network", "step", "loss in float64", "plain", "plain's error", "planned", "planned's error")
ENDS = (
    "network", "largest error of a loss, plain", "planned", "weights after the last step, plain", "planned",
    "groups that run another implementation", "of these reassociated",
)  # fmt: skip
NOTE = (
    f"{STEPS} steps of SGD with momentum from the same state on the same batches: plainly in float64, plainly in float32, and in float32 inside "
    "a budget that makes it sum in another order, at level reassociated: of the way from the proved floor of that level to keep-all "
    f"{', '.join(f'{alpha:.0%} for {name}' for name, alpha in ALPHAS.items())}. Error: distance from float64. "
    "U-Net: width 16, 8 images of 64 x 64, GPT-2: 8 x 64 of 4,096 tokens, without dropout. No Adam: it gives gradients that are zero but for "
    "rounding, such as those of keys' biases, steps as long as any."
)
ENDS_NOTE = "Weights: the norm of the distance from float64's, over the norm of the way that float64's went."
_UNLIMITED_B = 2**50
_TOKENS = 4096


def _cnn() -> nn.Module:
    from tests.networks import UNet, WithLoss

    return WithLoss(UNet(width=16, depth=3))


class NextToken(nn.Module):
    """A language model and its cross entropy in the type of its logits: transformers' own is computed in float32 at most."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.body(input_ids=input_ids).logits
        following = F.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), following)


def _language() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=128, n_head=4, vocab_size=_TOKENS, n_positions=64, use_cache=False, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    return NextToken(model)


def _images(g: torch.Generator) -> dict[str, Any]:
    """The class of a pixel is its strongest channel, so that there is something to learn."""
    x = torch.randn(8, 3, 64, 64, generator=g)
    return {"x": x, "y": x.argmax(1)}


def _texts(g: torch.Generator) -> dict[str, Any]:
    """Counting from a random number, so that the next token can be learnt."""
    begin = torch.randint(0, _TOKENS, (8, 1), generator=g)
    tokens = (begin + torch.arange(64)) % _TOKENS
    return {"input_ids": tokens, "labels": tokens}


SUBJECTS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], dict[str, Any]], float]] = {
    "U-Net": (_cnn, _images, 2e-2),
    "GPT-2 of two layers": (_language, _texts, 5e-2),
}
"""The network, its batches, and the rate at which it learns."""


def budget_of(network: str, model: nn.Module, options: dict[str, Any]) -> int:
    """The budget that `ALPHAS` says, from the proved floor of the menu to keep-all with the program's own implementations."""
    plain = lowtide.plan(model, budget=_UNLIMITED_B, without=KINDS, **options)
    whole = lowtide.plan(model, budget=_UNLIMITED_B, numerics=Numerics.REASSOCIATED, **options)
    return whole.floor_B + int(ALPHAS[network] * (plain.reserved_B - whole.floor_B))


def _batches(make: Callable[[torch.Generator], dict[str, Any]], steps: int, dtype: torch.dtype) -> Iterator[Any]:
    g = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield {k: v.to(dtype) if v.is_floating_point() else v for k, v in make(g).items()}


def _trained(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Any]) -> list[float]:
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def train_thrice(network: str, steps: int, limit_s: float) -> Row:
    """Trains plainly, inside a budget, and plainly in float64, in a process of its own; says how far they are apart."""
    keep_warm(1 << 30)
    fresh_profiles()
    make, batch_of, rate = SUBJECTS[network]

    def fresh(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = make().train().to(dtype)
        return model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    losses, ends = {}, {}
    for name, dtype in (("float64", torch.float64), ("plain", torch.float32)):
        model, optimizer = fresh(dtype)
        losses[name] = _trained(model, optimizer, _batches(batch_of, steps, dtype))
        ends[name] = _vector(model)
    model, optimizer = fresh()
    first = next(_batches(batch_of, 1, torch.float32))
    budget_B = budget_of(network, model, {"kwargs": first, "optimizer": optimizer, "time_limit_s": limit_s})
    level = Numerics.REASSOCIATED
    lowtide.fit(model, budget=budget_B, optimizer=optimizer, numerics=level, time_limit_s=limit_s)
    losses["planned"] = _trained(model, optimizer, _batches(batch_of, steps, torch.float32))
    ends["planned"] = _vector(model)
    record = model.lowtide.plan.record
    start = _vector(fresh()[0])
    candidate = float((ends["float64"] - start).norm())
    return {
        "network": network,
        "losses": losses,
        "weights": {k: float((ends[k] - ends["float64"]).norm()) / candidate for k in ("plain", "planned")},
        "chosen": counted(record.graph, record.schedule),
        "reassociated": reassociated(record.graph, record.schedule),
    }


def reassociated(graph: Graph, schedule: Schedule) -> int:
    """How many groups run an implementation that sums in another order."""
    ran = [step.recipe for step in schedule.steps if isinstance(step, Run)]
    chosen = chosen_options(graph, ran).items()
    return sum(graph.groups[g].options[option].numerics is not Numerics.EXACT for g, option in chosen)


def _vector(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def measure(key: str, effort: Effort) -> list[Row]:
    """One network in a process of its own.

    Raises:
        RuntimeError: if it failed.
    """
    row: Row = answer_of(train_thrice, key, 10 if effort.quick else STEPS, effort.limit_s, quiet=False)
    say(f"{key}: weights off by {row['weights']}, chosen {row['chosen']}")
    return [row]


def tables(found: Found) -> list[str]:
    """Some steps of every curve, and the largest errors."""
    rows = rows_of(found, NETWORKS)
    lines, ends = [], []
    for row in rows:
        exact, plain, planned = (row["losses"][k] for k in ("float64", "plain", "planned"))
        lines += [
            [row["network"], at, f"{exact[at - 1]:.9f}", *_beside(plain[at - 1], exact[at - 1]),
             *_beside(planned[at - 1], exact[at - 1])]
            for at in _AT if at <= len(exact)
        ]  # fmt: skip
        most = [max(abs(a - b) for a, b in zip(curve, exact, strict=True)) for curve in (plain, planned)]
        apart = [row["weights"][k] for k in ("plain", "planned")]
        chosen = ", ".join(f"{count} {kind}" for kind, count in sorted(row["chosen"].items())) or "none"
        ends.append([row["network"], *(f"{e:.1e}" for e in (*most, *apart)), chosen, row["reassociated"]])
    if not rows:
        return []
    return [
        table("Loss curves", COLUMNS, lines, len(lines), NOTE),
        table("How far from float64", ENDS, ends, len(rows), ENDS_NOTE),
    ]


def _beside(loss: float, exact: float) -> list[str]:
    return [f"{loss:.9f}", f"{abs(loss - exact):.1e}"]


CURVE_PART = Part("curves", NETWORKS, measure, tables)
