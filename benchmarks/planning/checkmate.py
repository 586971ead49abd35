"""Checkmate's own figures in its own layer model, with ours beside them.

`python -m benchmarks.planning.checkmate [--only vgg19 ratios batches] [--networks NAME ...]` writes
`results/checkmate.md` and `.json`; tables and networks that a run leaves out keep the rows of an earlier one.
P. Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization", MLSys 2020; the figures for
VGG-19 at a batch of one are those that its authors' notebook prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.planning import checkmate_batches, checkmate_ratios
from benchmarks.planning.checkmate_baselines import baseline, every_root, published_revolve
from benchmarks.planning.checkmate_models import training, vgg
from benchmarks.planning.checkmate_ratios import point
from benchmarks.results_file import read_numbers, table, write
from lowtide.ir.plan import Problem
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.classic.revolve import Revolve
from lowtide.planners.classic.rotor import Rotor
from lowtide.planners.portfolio import Portfolio

RESULTS = "checkmate"
PARTS = ("vgg19", "ratios", "batches")
BUDGET_B = 51_380_224  # of the published optimum
VGG19 = ("plan", "published", "here")
NOTES = {
    "vgg19": (
        "Billions of multiplications / MB of activations and gradients, batch 1. The published revolve read its plans from "
        "tables that are not to be had any more; the row is the reading of its code that has both published figures "
        "(`checkmate_baselines.py`). Our revolve splits as well but reruns only what a stage reads, and keeps what it brings "
        "back until its last use; every plan at 51.380 MB is at the proved floor of this model."
    ),
    "ratios": (
        "Geometric mean over budgets of a method's cost over the least cost known of any method; baselines as published, "
        "with what they hold needlessly. Over the bound: the same over what is proved of all schedules, so that the truth "
        "lies between the two columns. The published optimum is that of an integer programme within an hour, at its own "
        "choice of budgets. Published and here are not the same costs: VGG-19's square root of n costs 72.513 / 58.896 = 1.23 of "
        "checkpointing all by the authors' own figures for this model, above, and cannot be 1.54 of the optimum, so theirs "
        "are of other costs: by their scripts, times that were measured on a V100. Griewank takes every number of slots from two on; how many the published "
        "tables had is not known. For MobileNet and ResNet50 the linear programme, of more than 100 recipes, was not solved, and there "
        "are fewer budgets."
    ),
    "certified": "How the least known costs are certified: by the bound for any recomputation with first runs in program order.",
    "batches": (
        "16 GB, at most one forward more than a step; sizes grow with the batch, parameters and gradients (counted once) "
        "do not, the input is not counted. Counted as published: the published baselines compare a peak that holds "
        "parameters and gradients already with the room that is left beside them, which subtracts them twice; corrected: "
        "once, as their integer programme does; theirs for MobileNet, two days of search, is given as at least 1105. The 16 published for U-Net is what checkpointing all articulation points "
        "gives; checkpointing all layers gives more."
    ),
}  # fmt: skip


def vgg19() -> list[list[str]]:
    """VGG-19 at a batch of one, published and simulated here."""
    layers = vgg()
    graph = training(layers, "VGG19")
    every = tuple(range(len(layers)))
    found = []
    for name, published, schedule in (
        ("checkpoint all", "58.896 / 81.723", baseline(graph, every)),
        ("square root of n", "72.513 / 69.448", baseline(graph, every_root(every))),
        ("revolve, 5 slots, as published", "108.267 / 51.380", published_revolve(graph, 5)),
    ):
        found.append([name, published, _figures(point(graph, schedule))])
    planners: tuple[tuple[str, str, AbstractPlanner], ...] = (
        ("revolve, ours, at 51.380 MB", "-", Revolve()),
        ("rotor at 51.380 MB", "-", Rotor()),
        ("optimum at 51.380 MB; ours: portfolio", "58.983 / 51.380", Portfolio()),
    )
    for name, published, planner in planners:
        outcome = planner.solve(Problem(graph, BUDGET_B))
        here = "no plan" if outcome.schedule is None else _figures(point(graph, outcome.schedule))
        found.append([name, published, f"{here} ({outcome.status.name.lower()})"])
    return found


def _figures(at: checkmate_ratios.Point) -> str:
    return f"{at.time_s * 1e3:.3f} / {at.peak_B / 1e6:.3f}"


def tables(numbers: dict[str, Any]) -> list[str]:
    """All tables of which there are rows."""
    found = []
    if rows := numbers["vgg19"]:
        found.append(table("VGG-19 at a batch of one", VGG19, rows, 6, NOTES["vgg19"]))
    by_network = [numbers["ratios"][n] for n in checkmate_ratios.NETWORKS if n in numbers["ratios"]]
    rows = [row for each in by_network for row in each["rows"]]
    expected = len(by_network) * len(checkmate_ratios.METHODS)
    found.append(table("Cost over the optimum", checkmate_ratios.COLUMNS, rows, expected, NOTES["ratios"]))
    certified = [each["certified"] for each in by_network]
    found.append(table("Certificates", checkmate_ratios.CERTIFIED, certified, len(by_network), NOTES["certified"]))
    batches = [numbers["batches"][n] for n in checkmate_batches.NETWORKS if n in numbers["batches"]]
    expected = len(batches) * (len(checkmate_batches.BASELINES) + 2)
    rows = [row for each in batches for row in each]
    found.append(table("Largest batches", checkmate_batches.COLUMNS, rows, expected, NOTES["batches"]))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what was asked for, and writes all tables anew after each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--networks", nargs="*", choices=list(checkmate_ratios.NETWORKS), metavar="NAME")
    parser.add_argument("--budgets", type=int, default=32, help="per half of the range, for the ratios")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per plan")
    parser.add_argument("--work", type=int, default=1_000_000, help="per plan, for the batches")
    parser.add_argument("--most-recipes", type=int, default=200, help="for which the linear programme is solved")
    parser.add_argument("--lp-limit", type=float, default=300.0, help="seconds per linear programme, for the ratios")
    parser.add_argument("--try", dest="trial", action="store_true", help="write checkmate_quick and merge nothing")
    options = parser.parse_args(arguments)
    name = f"{RESULTS}_quick" if options.trial else RESULTS
    numbers: dict[str, Any] = {"vgg19": [], "ratios": {}, "batches": {}}
    numbers |= {} if options.trial else read_numbers(name)
    asked = options.networks or list(checkmate_ratios.NETWORKS)

    def save() -> None:
        write(name, "Checkmate's figures", tables(numbers), numbers)

    if "vgg19" in options.only:
        numbers["vgg19"] = vgg19()
        save()
    for network in (n for n in checkmate_ratios.NETWORKS if n in asked and "ratios" in options.only):
        found = checkmate_ratios.measure(
            network, options.budgets, options.limit, options.most_recipes, options.lp_limit
        )
        rows = list(checkmate_ratios.ratios(found))
        numbers["ratios"][network] = {"rows": rows, "certified": checkmate_ratios.certificates(found)}
        save()
    for network in (n for n in checkmate_batches.NETWORKS if n in asked and "batches" in options.only):
        numbers["batches"][network] = list(checkmate_batches.rows(network, options.limit, options.work))
        save()
    sys.stdout.write("\n".join(tables(numbers)))


if __name__ == "__main__":
    main()
