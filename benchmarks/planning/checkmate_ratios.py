"""Checkmate's second table: how much more than the optimum its baselines, its rounding and our portfolio cost.

As its authors count: budgets spread from what one layer needs to what checkpointing everything needs, and once more
around the least bytes of any plan; per budget a method's cheapest plan that fits over the optimum; of all budgets at
which the method has a plan, the geometric mean. Bytes are those of activations and gradients of a batch of one.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.planning.checkmate_baselines import articulation_points, baseline, every_root, greedy, published_revolve
from benchmarks.planning.checkmate_models import VGG16, Layer, mobilenet, resnet50, training, vgg, vgg_unet
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.plan import Problem, Status
from lowtide.ir.schedule import Schedule
from lowtide.ir.simulate import simulate
from lowtide.planners.classic.checkmate import LpRounding
from lowtide.planners.portfolio import Portfolio

NETWORKS: dict[str, Callable[[], tuple[Layer, ...]]] = {
    "MobileNet": mobilenet,
    "VGG16": lambda: vgg(VGG16),
    "VGG19": vgg,
    "U-Net": vgg_unet,
    "ResNet50": resnet50,
}
PUBLISHED: dict[str, dict[str, float]] = {
    "MobileNet": {"AP sqrt(n)": 1.14, "AP greedy": 1.07, "Griewank": 7.07, "two-phase LP": 1.06},
    "VGG16": {"AP sqrt(n)": 1.28, "AP greedy": 1.06, "Griewank": 1.44, "two-phase LP": 1.01},
    "VGG19": {"AP sqrt(n)": 1.54, "AP greedy": 1.39, "Griewank": 1.75, "two-phase LP": 1.00},
    "U-Net": {"AP sqrt(n)": 1.27, "AP greedy": 1.23, "two-phase LP": 1.03},
    "ResNet50": {"AP sqrt(n)": 1.20, "AP greedy": 1.25, "two-phase LP": 1.05},
}
METHODS = ("AP sqrt(n)", "AP greedy", "Griewank", "two-phase LP", "portfolio")
COLUMNS = ("network", "method", "published", "here", "worst", "budgets with a plan", "over the bound")
CERTIFIED = ("network", "recipes", "budgets", "proved optimal", "within 0.5 % of the bound", "largest gap")
_SWEEP = 300  # bytes between greedy's checkpoints, in hundredths of the linearised square root's peak
_SPARSE = 8  # budgets at which large linear programmes are solved
_LARGE = 100  # recipes


@dataclass(frozen=True, order=True)
class Point:
    """Bytes and seconds of one plan."""

    peak_B: int
    time_s: float


@dataclass
class Found:
    """What is known of one network.

    Arguments:
        plans: per method the points of its plans; of the methods that know budgets, per budget.
        best_s: per budget the cost of the cheapest plan of all.
        bound_s: per budget what no schedule is faster than.
    """

    name: str
    recipes: int
    sweeps: dict[str, list[Point]]
    solved: dict[str, dict[int, float]] = field(default_factory=dict)
    best_s: dict[int, float] = field(default_factory=dict)
    bound_s: dict[int, float] = field(default_factory=dict)
    proved: int = 0

    def times_s(self, method: str) -> dict[int, float]:
        """A method's cost at each budget at which it has a plan."""
        if method in self.solved:
            return self.solved[method]
        points = self.sweeps.get(method, [])
        fits = {b: [p.time_s for p in points if p.peak_B <= b] for b in self.best_s}
        return {b: min(times) for b, times in fits.items() if times}


def point(graph: Graph, schedule: Schedule) -> Point:
    """Checks and simulates a plan."""
    check(graph, schedule)
    timeline = simulate(graph, schedule)
    return Point(timeline.peak_B, timeline.time_s)


def sweeps(graph: Graph, layers: Sequence[Layer], sweep: int = _SWEEP) -> dict[str, list[Point]]:
    """The published baselines, greedy and revolve with all their settings."""
    every, points = tuple(range(len(layers))), articulation_points(layers)
    found = {
        "checkpoint all": [point(graph, baseline(graph, every))],
        "checkpoint all APs": [point(graph, baseline(graph, points))],
        "AP sqrt(n)": [point(graph, baseline(graph, every_root(points)))],
        "linearised sqrt(n)": [point(graph, baseline(graph, every_root(every)))],
    }
    unit_B = found["linearised sqrt(n)"][0].peak_B * 3 / sweep
    for name, candidates in (("AP greedy", points), ("linearised greedy", every)):
        inside = frozenset(candidates)
        sets = dict.fromkeys(greedy(layers, inside, k * unit_B) for k in range(sweep))
        found[name] = [point(graph, baseline(graph, checkpoints)) for checkpoints in sets]
    if points == every:
        found["Griewank"] = [point(graph, published_revolve(graph, slots)) for slots in range(2, len(layers))]
    return found


def budgets(layers: Sequence[Layer], found: dict[str, list[Point]], count: int) -> list[int]:
    """Half of them across the whole range, half around the least bytes of any baseline, in kilobytes rounded up; and where each fits."""
    most_B = found["checkpoint all"][0].peak_B
    least_B = max(layer.size_B + sum(layers[r].size_B for r in layer.reads) for layer in layers)
    tight_B = min(p.peak_B for points in found.values() for p in points)
    spread = [(least_B, most_B), (tight_B // 2, tight_B * 3 // 2)]
    chosen = [low_B + k * (high_B - low_B) // count for low_B, high_B in spread for k in range(count)]
    largest_B = max(p.peak_B for points in found.values() for p in points)
    return sorted({-(-b // 1000) * 1000 for b in (*chosen, most_B, largest_B)})


def measure(name: str, count: int, limit_s: float, most_recipes: int, lp_limit_s: float) -> Found:
    """Everything of one network; linear programmes have a limit of their own."""
    layers = NETWORKS[name]()
    graph = training(layers, name)
    found = Found(name, len(graph.program), sweeps(graph, layers))
    wanted = budgets(layers, found.sweeps, count)
    sparse = set(wanted[:: max(1, len(wanted) // _SPARSE)])
    rounding = LpRounding(most_recipes)
    found.solved["portfolio"] = {}
    if rounding.refuses(Problem(graph, 0)) is None:
        found.solved["two-phase LP"] = {}
    for budget_B in wanted:
        problem = Problem(graph, budget_B, time_limit_s=limit_s)
        ours = Portfolio().solve(problem)
        sys.stderr.write(f"{name} at {budget_B}: {ours.status.name}\n")
        if ours.status is Status.INFEASIBLE:
            continue
        costs = {} if ours.schedule is None else {"portfolio": point(graph, ours.schedule).time_s}
        if "two-phase LP" in found.solved and (len(graph.program) <= _LARGE or budget_B in sparse):
            rounded = rounding.solve(Problem(graph, budget_B, time_limit_s=lp_limit_s)).schedule
            costs |= {} if rounded is None else {"two-phase LP": point(graph, rounded).time_s}
        fits = [p.time_s for points in found.sweeps.values() for p in points if p.peak_B <= budget_B]
        if costs or fits:
            found.best_s[budget_B] = min([*costs.values(), *fits])
            found.bound_s[budget_B] = ours.bound_s
            found.proved += ours.status is Status.OPTIMAL
        for method, time_s in costs.items():
            found.solved[method][budget_B] = time_s
    return found


def ratios(found: Found) -> Iterator[list[str]]:
    """Rows of one network."""
    for method in METHODS:
        published = PUBLISHED[found.name].get(method)
        times = found.times_s(method)
        over = [t / found.best_s[b] for b, t in times.items()]
        bound = [t / found.bound_s[b] for b, t in times.items()]
        yield [
            found.name,
            method,
            "-" if published is None else f"{published:.2f}",
            f"{statistics.geometric_mean(over):.3f}" if over else "-",
            f"{max(over):.3f}" if over else "-",
            f"{len(over)} of {len(found.best_s)}",
            f"{statistics.geometric_mean(bound):.3f}" if bound else "-",
        ]


def certificates(found: Found) -> list[object]:
    """How far the best known plans are from what is proved."""
    gaps = [found.best_s[b] / found.bound_s[b] - 1.0 for b in found.best_s]
    close = sum(gap <= 0.005 for gap in gaps)
    return [found.name, found.recipes, len(gaps), found.proved, close, f"{max(gaps, default=0.0):.2%}"]
