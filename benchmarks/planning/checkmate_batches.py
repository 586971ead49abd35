"""Checkmate's largest batches on a GPU of 16 GB, with the time of one more forward allowed.

Everything in the layer model grows with the batch but the parameters and their gradients, so a plan's largest batch
follows from its bytes for a batch of one. The published baselines were asked to live in what is left when parameters
and gradients are subtracted twice; counted once, larger batches fit. The published programme counts them once, and like
the baselines leaves out the input.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.planning.checkmate_models import Layer, mobilenet, training, vgg, vgg_unet
from benchmarks.planning.checkmate_ratios import point, sweeps
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Problem, Status
from lowtide.planners.portfolio import Portfolio

CAPACITY_B = 16_000_000_000
NETWORKS: dict[str, Callable[[], tuple[Layer, ...]]] = {"MobileNet": mobilenet, "U-Net": vgg_unet, "VGG19": vgg}
# Where only a quotient is published, what it comes to.
PUBLISHED: dict[str, dict[str, str]] = {
    "MobileNet": {"checkpoint all": "1105 / 5.1", "AP greedy": "1105 / 1.73", "programme": "1105"},
    "U-Net": {"checkpoint all APs": "16", "programme": "61"},
    "VGG19": {"checkpoint all": "167", "AP sqrt(n)": "197", "AP greedy": "266", "programme": "289"},
}
BASELINES = (
    "checkpoint all",
    "checkpoint all APs",
    "AP sqrt(n)",
    "linearised sqrt(n)",
    "AP greedy",
    "linearised greedy",
)
COLUMNS = ("network", "method", "published", "counted as published", "corrected", "of checkpoint all")
_SWEEP = 60  # as published: twentieths of the linearised square root's peak
_FLOAT_B = 4


@dataclass(frozen=True)
class Most:
    """A largest batch, and the least for which it is proved that there is none; None where that is not known."""

    batch: int
    none_from: int | None


def fixed_B(layers: tuple[Layer, ...]) -> int:
    """Parameters and their gradients."""
    return 2 * _FLOAT_B * sum(layer.parameters for layer in layers)


def allowed_s(graph: Graph) -> float:
    """One step and one more forward: the backward takes twice a forward's time."""
    return sum(recipe.time_s for recipe in graph.recipes) * 4 / 3 * (1.0 + 1e-12)


def ours(graph: Graph, free_B: int, least: int, limit_s: float, work: int) -> Most:
    """Bisects the batch, from one that fits.

    Arguments:
        free_B: for everything that grows.
        least: a batch for which a plan is known.
    """
    time_s = allowed_s(graph)

    def ask(batch: int) -> tuple[bool, bool]:
        """Whether a plan was found, and whether there is proved to be none."""
        outcome = Portfolio().solve(Problem(graph, free_B // batch, time_limit_s=limit_s, work=work))
        none = outcome.status is Status.INFEASIBLE or outcome.bound_s > time_s
        found = outcome.schedule is not None and point(graph, outcome.schedule).time_s <= time_s
        sys.stderr.write(f"{graph.name}, batch {batch}: {'fits' if found else 'none' if none else 'not found'}\n")
        return found, none

    known: dict[int, tuple[bool, bool]] = {least: (True, False)}
    beyond = 2 * least
    while not known.setdefault(beyond, ask(beyond))[1]:
        beyond *= 2
    for answer in (0, 1):  # the largest batch that was found, the least that was refuted
        low = max(b for b, seen in known.items() if (seen[0] if answer == 0 else not seen[1]))
        high = min(b for b, seen in known.items() if (not seen[0] if answer == 0 else seen[1]) and b > low)
        while high - low > 1:
            middle = (low + high) // 2
            if middle not in known:
                known[middle] = ask(middle)
            fits = known[middle][0] if answer == 0 else not known[middle][1]
            low, high = (middle, high) if fits else (low, middle)
    return Most(
        max(b for b, (found, _) in known.items() if found),
        min((b for b, (_, none) in known.items() if none), default=None),
    )


def rows(name: str, limit_s: float, work: int) -> Iterator[list[str]]:
    """The rows of one network, the baselines first."""
    layers = NETWORKS[name]()
    graph = training(layers, name)
    fixed, time_s = fixed_B(layers), allowed_s(graph)
    found = sweeps(graph, layers, _SWEEP)
    most: dict[str, tuple[int, int]] = {}
    for method in BASELINES:
        peaks_B = [p.peak_B for p in found[method] if p.time_s <= time_s]
        if peaks_B:
            most[method] = ((CAPACITY_B - 2 * fixed) // min(peaks_B), (CAPACITY_B - fixed) // min(peaks_B))
    plain = most["checkpoint all"][1]
    published = PUBLISHED[name]
    for method in BASELINES:
        twice, once = most.get(method, ("takes longer", "takes longer"))
        share = f"{once / plain:.2f}" if isinstance(once, int) else "-"
        yield [name, method, published.get(method, "-"), str(twice), str(once), share]
    yield [
        name,
        "Checkmate's integer programme",
        published["programme"],
        "-",
        published["programme"],
        f"{int(published['programme']) / plain:.2f}",
    ]
    best = ours(graph, CAPACITY_B - fixed, max(once for _, once in most.values()), limit_s, work)
    beyond = "" if best.none_from is None else f" (proved: none from {best.none_from})"
    yield [name, "portfolio", "-", "-", f"{best.batch}{beyond}", f"{best.batch / plain:.2f}"]
