"""Statistics are updated once per step, in every mode of every normalisation; weights are normalised as plainly."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from lowtide import pipeline
from lowtide.ir.graph import Graph
from lowtide.ir.schedule import Run
from lowtide.profile.findings import Profiled
from lowtide.profile.in_place import settled
from lowtide.profile.machines import MACHINES
from lowtide.profile.measure import profile_graph
from lowtide.profile.roofline import predict_s
from tests.semantics.pairs import Wide, batches, same, steps


class Images(nn.Module):
    """Normalisations of images between convolutions."""

    def __init__(self, *norms: nn.Module) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norms)
        self.layers = nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in norms)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = h.view(64, 8, 4, 4)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            h = torch.relu_(norm(layer(h)))
        return h.reshape(256, 32)


def test_batch_norm_in_its_modes() -> None:
    norms = lambda: (  # noqa: E731
        nn.BatchNorm2d(8), nn.BatchNorm2d(8, track_running_stats=False), nn.BatchNorm2d(8, affine=False, momentum=0.3),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8),
    )  # fmt: skip
    same(lambda: Wide(Images(*norms())), steps())


def test_outputs_that_come_back_from_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    # Running a norm again is exact too, and chosen where a busy machine happens to measure it as the faster one.
    monkeypatch.setattr(pipeline, "profile_graph", _profile_of_one_machine)
    norms = lambda: (nn.BatchNorm2d(8), nn.BatchNorm2d(8, track_running_stats=False), nn.BatchNorm2d(8))  # noqa: E731
    fitted = same(lambda: Wide(Images(*norms())), steps())
    (plan,) = fitted.lowtide.plans
    graph, ran = plan.record.graph, [s.recipe for s in plan.record.schedule.steps if isinstance(s, Run)]
    assert "lowtide.batch_norm_again" in {graph.recipes[r].op for r in ran}
    tracking = [r for r in ran if graph.recipes[r].op == "aten._native_batch_norm_legit_functional.default"]
    assert len(tracking) == len(set(tracking)) == 2  # so running statistics are updated once; others may be recomputed


def _profile_of_one_machine(graph: Graph, **options: Any) -> Profiled:
    """What is measured, but for seconds: they are predicted, the same ones on every machine."""
    found = profile_graph(graph, **options)
    recipes = [
        msgspec.structs.replace(r, time_s=predict_s(found.graph, r, MACHINES["cpu"])) for r in found.graph.recipes
    ]
    timed = settled(msgspec.structs.replace(found.graph, recipes=tuple(recipes)))
    return msgspec.structs.replace(found, graph=timed)


def test_batch_norm_with_a_cumulative_average() -> None:
    same(lambda: Wide(Images(nn.BatchNorm2d(8, momentum=None), nn.BatchNorm2d(8))), steps(), recomputes=False)


def test_batch_norm_frozen_in_training() -> None:
    class Frozen(Images):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self.norms[0].eval()
            return self

    def make() -> nn.Module:
        module = Wide(Frozen(nn.BatchNorm2d(8), nn.BatchNorm2d(8)))
        module.middle.norms[0].running_mean.add_(0.5)
        for p in module.middle.norms[0].parameters():
            p.requires_grad_(False)
        return module

    same(make, steps())


def _old(name: str) -> Callable[[nn.Module], nn.Module]:
    def apply(layer: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(torch.nn.utils, name)(layer)

    return apply


@pytest.mark.parametrize(
    "norm",
    [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal, _old("weight_norm"),
     _old("spectral_norm")],
    ids=["weight", "spectral", "orthogonal", "weight-hook", "spectral-hook"],
)  # fmt: skip
def test_normalised_weights(norm: Callable[[nn.Module], nn.Module]) -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(norm(nn.Linear(32, 32)) for _ in range(2))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                h = F.gelu(layer(h))
            return h

    def scenario(module: nn.Module) -> list[object]:
        seen = steps(2)(module)
        module.eval()
        with torch.no_grad():
            seen.append(module(batches(1)[0]).clone())
        module.train()
        return [*seen, *steps(1)(module)]

    departs = "aten.linalg_matrix_exp" if norm is parametrizations.orthogonal else ()
    same(lambda: Wide(Normalised()), scenario, spare=0.02 if departs else 0.1, departs=departs)
