"""The ecosystem's networks at real sizes, inside hard budgets; and what is refused, with its message.

`python -m benchmarks.fidelity.ecosystem [--only NAME ...] [--alphas A ...]` writes `results/ecosystem.md` and `.json`; rows of
networks that a run leaves out stay as an earlier one measured them. It fails if a row is missing, if the bits differ from
plain training, or if a byte is over a budget.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from typing import Any

from benchmarks.executed.hard_budget_prediction import mb
from benchmarks.fidelity import ecosystem_network
from benchmarks.fidelity.ecosystem_network import KEEP_ALL, STEPS, Label, brief
from benchmarks.fidelity.ecosystem_networks import FURTHER, NETWORKS
from benchmarks.fidelity.refusals import CASES, attempt_all
from benchmarks.results_file import read_numbers, table, write
from benchmarks.runner import Limits, run

RESULTS = "ecosystem"
LABELS: tuple[Label, ...] = (KEEP_ALL, 0.75, 0.5, 0.25, 0.1, 0.05)
COLUMNS = (
    "network", "alpha", "budget MB", "of plain", "predicted MB", "observed MB", "error", "bits", "gap", "overhead, predicted",
    "overhead, measured", "plan s", "departures", "spills",
)  # fmt: skip
FACTS = (
    "network", "library", "size", "optimizer", "operators", "graphs", "capture s", "measure s", "persistent MB", "floor MB",
    "smallest MB", "keep-all MB", "plain MB", "step s", "A/A", "rounds", "all in s",
)  # fmt: skip
REFUSED = ("what", "outcome", "message")
Found = dict[str, Any]


def measure(name: str, labels: list[Label], limits: Limits) -> Found:
    """One network in a process of its own: what it told, and why it ended if it ended early."""
    ended = run(ecosystem_network.measure, name, labels, limits=limits, quiet=False)
    network = NETWORKS[name]
    found: Found = {
        "name": name, "library": network.source, "size": network.size, "optimizer": network.optimizer,
        "rows": [], "failure": None if ended.failure is None else brief(ended.failure), "seconds_s": ended.elapsed_s,
    }  # fmt: skip
    for row in ended.rows:
        if row["kind"] == "row":
            found["rows"].append(row["content"])
        else:
            found |= row["content"]
    return found


def rows_of(found: Found) -> list[list[object]]:
    """A network's rows: one for every budget, with the message where it failed."""
    ratios = found.get("ratios", {})
    rows: list[list[object]] = []
    known = {str(row["alpha"]): row for row in found["rows"]}
    for label in found["labels"]:
        row = known.get(str(label), {})
        failure = row.get("failure") or (None if row else found["failure"])
        head = [
            found["name"],
            label,
            *([mb(row["budget_B"]), f"{row['budget_B'] / found['plain_B']:.0%}"] if row else "--"),
        ]
        if not row or failure:
            rows.append([*head, failure or "missing", *["-"] * (len(COLUMNS) - len(head) - 1)])
            continue
        measured = f"{ratios[str(label)] - 1:+.1%}" if str(label) in ratios else "-"
        rows.append([
            *head, mb(row["predicted_B"]), mb(row["observed_B"]), f"{row['error']:+.2%}", row["bits"],
            f"{row['gap']:.1%}", f"{row['overhead']:.1%}", measured, f"{row['plan_s']:.1f}", row["departures"], row["spills"],
        ])  # fmt: skip
    return rows


def facts_of(found: Found) -> list[object]:
    """A network's row of what holds at every budget."""
    head = [found["name"], found["library"], found["size"], found["optimizer"]]
    if "operators" not in found:
        return [
            *head,
            found["failure"] or "missing",
            *["-"] * (len(FACTS) - len(head) - 2),
            f"{found['seconds_s']:.0f}",
        ]
    timed = "ratios" in found
    return [
        *head, found["operators"], found["graphs"], f"{found['capture_s']:.1f}", f"{found['measure_s']:.1f}",
        *(mb(found[f"{k}_B"]) for k in ("persistent", "floor", "smallest", "keep_all", "plain")),
        f"{found['step_s']:.2f}" if timed else "-", f"{found['ratios']['again'] - 1:+.1%}" if timed else "-",
        found["rounds"] if timed else "-", f"{found['seconds_s']:.0f}",
    ]  # fmt: skip


def broken_by(found: Found) -> list[str]:
    """The promises that a network's rows break."""
    name = found["name"]
    broken = [] if found["failure"] is None else [f"{name}: {found['failure']}"]
    for row in found["rows"]:
        if row.get("failure"):
            broken.append(f"{name} at {row['alpha']}: {row['failure']}")
            continue
        if row["bits"] == "DIFFERENT":
            broken.append(f"{name} at {row['alpha']}: the bits differ")
        if row["spills"]:
            broken.append(f"{name} at {row['alpha']}: served past the arena, with a warning: {row['spills']}")
        if row["observed_B"] > row["budget_B"] or row["kind"] != "enforced":
            broken.append(f"{name} at {row['alpha']}: over the budget")
    return broken


def summary_of(networks: list[Found]) -> str:
    """What all the rows come to, in one line."""
    rows = [r for n in networks for r in n["rows"] if not r.get("failure")]
    verdicts = collections.Counter(r["bits"] for r in rows)
    misplaced_allocations, hits = sum(r["departures"] for r in rows), sum(r["hits"] for r in rows)
    most = max((abs(r["error"]) for r in rows), default=0.0)
    promised = sum(len(n["labels"]) for n in networks)
    return (
        f"{verdicts['equal']} of {promised} rows equal, {verdicts['as compiled']} as compiled, {verdicts['DIFFERENT']} "
        f"different, {promised - len(rows)} refused or failed; "
        f"{misplaced_allocations} departures of {hits + misplaced_allocations} planned allocations, each counted and named; "
        f"{sum(r['spills'] for r in rows)} requests of code between served past the arena, each with a warning; largest "
        f"error of a prediction {most:.2%}."
    )


def with_earlier(networks: list[Found]) -> list[Found]:
    """Networks that this run left out, from the results of an earlier one, in the usual order."""
    fresh = {n["name"]: n for n in networks}
    earlier = {n["name"]: n for n in read_numbers(RESULTS).get("networks", []) if n["name"] in NETWORKS}
    both = earlier | fresh
    return [both[name] for name in NETWORKS if name in both]


def tables_of(networks: list[Found], refusals: list[Found]) -> list[str]:
    """The tables, every promised row in them."""
    rows = [row for n in networks for row in rows_of(n)]
    further = ", ".join(n.name for n in FURTHER) or "none yet"
    return [
        table(
            "Every budget", COLUMNS, rows, sum(len(n["labels"]) for n in networks),
            f"Budgets: smallest + alpha (keep-all - smallest), each an arena of that size. Predicted and observed: bytes "
            f"reserved, holes included; error over (reserved - persistent). Bits: losses, parameters, buffers and generator after "
            f"{STEPS} steps, `torch.equal` to plain PyTorch; \"as compiled\": to `torch.compile(backend=\"aot_eager\")`, because the network's "
            "own code asks whether it is being compiled and then takes another path. Measured: forward and backward over keeping everything, "
            "medians of interleaved rounds in one arena. Plan: what the first forward at a budget took longer than the "
            f"second. {summary_of(networks)}",
        ),
        table(
            "The networks", FACTS, [facts_of(n) for n in networks], len(networks),
            "Random weights and inputs from a seed. Capture: Dynamo, AOTAutograd and what lowtide makes of it; measure: "
            f"every distinct operator, and the plan that keeps everything. Chosen after the code was written: {further}.",
        ),
        table(
            "What is refused", REFUSED, [[r["what"], r["outcome"], r["message"] or "-"] for r in refusals], len(CASES),
            "Each was run; where it was not refused, this says what came out.",
        ),
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Runs and writes the tables; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS), metavar="NAME")
    parser.add_argument("--alphas", nargs="*", type=float, default=list(LABELS[1:]), help="keep-all is always measured")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which a network is stopped")
    parser.add_argument("--try", dest="trial", action="store_true", help="write ecosystem_quick and merge nothing")
    options = parser.parse_args(arguments)
    labels: list[Label] = [KEEP_ALL, *options.alphas]
    limits = Limits(elapsed_s=options.limit)
    begin = time.perf_counter()
    networks: list[Found] = []
    for index, name in enumerate(options.only, 1):
        networks.append(measure(name, labels, limits) | {"labels": labels})
        _say(
            f"{index} of {len(options.only)}: {name} in {networks[-1]['seconds_s']:.0f} s, {time.perf_counter() - begin:.0f} s in all"
        )
    refused = run(attempt_all, limits=limits, quiet=False)
    broken = [promise for n in networks for promise in broken_by(n)]
    broken += [f"the refusals: {refused.failure}"] if refused.failure else []
    if not options.trial:
        networks = with_earlier(networks)
    tables = tables_of(networks, refused.rows)
    numbers = {"networks": networks, "refusals": refused.rows}
    path = write(f"{RESULTS}_quick" if options.trial else RESULTS, "The ecosystem inside the wall", tables, numbers)
    sys.stdout.write(path.read_text())
    sys.stderr.writelines(f"BROKEN: {promise}\n" for promise in broken)
    return int(bool(broken))


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
