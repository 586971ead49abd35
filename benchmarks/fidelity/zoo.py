"""Every family that transformers, timm and torchvision register, one small network each, at three budgets, bit by bit.

`python -m benchmarks.fidelity.zoo [--only TEXT ...] [--resume] [--jobs N] [--tables]`. Each network runs in a process of its own
under a limit of processor time and memory, so that a crash is a row; it is forked from this one, which has imported everything
and computed nothing. Rows are lines of JSON in `build/zoo.jsonl`, and `--resume` goes on where an earlier run stopped, on another
machine from the rows that `results/zoo.json` has. Writes `results/zoo.md` and `.json` from all rows that there are, the latest of
each network; `--tables` does only that. 1 if a network differs or fails, or a family was not run.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import select
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.zoo import registries

from benchmarks.fidelity import zoo_network
from benchmarks.results_file import read_numbers, table, write
from benchmarks.runner import Ended, Limits, Process

RESULTS = "zoo"
LINES = Path(__file__).parents[2] / "build" / "zoo.jsonl"
LIMITS = Limits(processor_s=480, resident_B=6 << 30)
QUIET = not os.environ.get("LOWTIDE_ZOO_LOUD")
LASTING = ("network", "found", "budget", "outcome", "message", "raised_B")
"""What the results keep of a row."""
Row = dict[str, Any]


def run(names: list[str], jobs: int) -> None:
    """Runs networks and appends their rows to `LINES`."""
    waiting, running = list(reversed(names)), dict[Process, str]()
    done = 0
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            running[Process(zoo_network.measure, (name,), limits=LIMITS, quiet=QUIET, forked=True)] = name
        ready, _, _ = select.select(list(running), [], [], 0.5)
        for process in running:
            process.watch()
        for process in ready:
            if process.pump():
                continue
            name = running.pop(process)
            rows = rows_of(name, process.ended())
            with LINES.open("a") as lines:
                lines.writelines(json.dumps(row) + "\n" for row in rows)
            done += 1
            brief = "; ".join(f"{r.get('budget', '')} {r['outcome']}".strip() for r in rows if "outcome" in r)
            _say(f"{done} of {len(names)} {name} ({rows[-1]['cpu_s'] if rows else 0} s): {brief}")


def rows_of(name: str, ended: Ended) -> list[Row]:
    """All rows of a network; one more if its process did not end by itself."""
    rows = list(ended.rows)
    if ended.failure is not None:
        rows.append({"outcome": "failed", "message": ended.failure, "trace": ended.errors[-1500:]})
    used = {"cpu_s": round(ended.processor_s, 1), "peak_B": ended.peak_B}
    return [{"network": name} | row | used for row in rows]


def earlier() -> dict[str, list[Row]]:
    """Rows of earlier runs by network, those of the results and those of `LINES`; the latest run of each."""
    lines = LINES.read_text().splitlines() if LINES.exists() else []
    return _latest(read_numbers(RESULTS).get("rows", [])) | _latest(json.loads(line) for line in lines)


def _latest(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each network's latest run."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        name = row["network"]
        if "found" in row or (
            row["outcome"] == "not applicable" and "budget" not in row and "found" not in (found.get(name) or [{}])[0]
        ):
            found[name] = []
        found.setdefault(name, []).append(row)
    return found


def in_turn(names: list[str]) -> list[str]:
    """The libraries in turn, each library's families in an order that prefers none: a run that is stopped is a sample."""
    queues = collections.defaultdict(list)
    for name in sorted(names, key=lambda n: zlib.crc32(n.encode())):
        queues[name.partition("/")[0]].append(name)
    turns = {"transformers": 10, "timm": 2, "torchvision": 1}
    place = {name: index / turns[library] for library, queue in queues.items() for index, name in enumerate(queue)}
    return sorted(names, key=lambda n: (place[n], n))


def verdict_of(rows: list[Row]) -> str:
    """One word for a network: the worst that any budget showed."""
    outcomes = [r["outcome"] for r in rows if "outcome" in r]
    for worst in ("failed", "different", "refused", "not applicable", "equal", "no plan"):
        if worst in outcomes:
            return worst
    return "failed"


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main(arguments: list[str] | None = None) -> int:
    """Runs and writes the tables; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="families whose name contains one of these")
    parser.add_argument("--resume", action="store_true", help="keep the rows of earlier runs, and run what has none")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tables", action="store_true", help="run nothing, write the tables of earlier runs")
    options = parser.parse_args(arguments)
    prepare()
    if options.tables:
        return write_results(registries.families())
    names = [n for n in registries.families() if not options.only or any(text in n for text in options.only)]
    known = earlier() if options.resume else {}
    LINES.parent.mkdir(exist_ok=True)
    if not options.resume and not options.only:
        LINES.unlink(missing_ok=True)
    run(in_turn([n for n in names if n not in known]), options.jobs)
    if not options.only:
        return write_results(registries.families())
    counts = collections.Counter(verdict_of(earlier()[n]) for n in names)
    _say(str(dict(counts)))
    return int(bool(counts["different"] or counts["failed"]))


def write_results(names: list[str]) -> int:
    """Writes the tables.

    Arguments:
        names: of all families.

    Returns: 1 if a network differs or fails, or a family was not run.
    """
    known = {name: rows for name, rows in earlier().items() if name in names}
    verdicts = {name: verdict_of(rows) for name, rows in known.items()}
    trained = [n for n in sorted(known) if verdicts[n] not in ("not applicable", "no plan")]
    counts = collections.Counter(verdicts.values())
    missing = len(names) - len(known)
    by_library = collections.Counter(n.partition("/")[0] for n in trained)
    text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    raised = sum(any(row.get("raised_B") for row in known[n]) for n in trained)
    note = (
        f"{len(names)} families, {missing} of them not run: {text}. "
        f"Trained: {', '.join(f'{count} of {library}' for library, count in sorted(by_library.items()))}. "
        "Two steps of AdamW from the same state on two batches; equal: loss, every gradient, parameters, buffers and the "
        "states of torch's, Python's and numpy's generators, by torch.equal. A network counts as its worst budget. "
        "Every budget has a new model; the smallest is the one named to such a model when it asks for one byte, or by the "
        f"refusal of a step that was another program ({raised} networks)."
    )
    columns = ["network", "what", *zoo_network.BUDGETS, "why not"]
    lines = [_line_of(name, known[name]) for name in trained]
    others = [[n, known[n][-1].get("message", "")[:200] or "-"] for n in sorted(known) if n not in trained]
    tables = [
        table("Networks that train", columns, lines, len(trained), note),
        table("Families without a network that trains here", ["family", "why"], others, len(known) - len(trained)),
    ]
    rows = [{k: row[k] for k in LASTING if row.get(k)} for name in sorted(known) for row in known[name]]
    write(RESULTS, "Every registered family, one small network each", tables, {"counts": counts, "rows": rows})
    _say(f"{text}; {missing} not run")
    return int(bool(missing or counts["different"] or counts["failed"]))


def _line_of(name: str, rows: list[Row]) -> list[str]:
    """A network's line of the table."""
    by_budget = {r["budget"]: r for r in rows if "budget" in r}
    whys = [r["message"] for r in rows if r.get("outcome") in ("refused", "failed") and r.get("message")]
    outcomes = [by_budget[b]["outcome"] if b in by_budget else "-" for b in zoo_network.BUDGETS]
    found = next((r["found"] for r in rows if "found" in r), "-")
    return [name, found.replace("|", "/"), *outcomes, (whys[0] if whys else "-").replace("|", "/")[:300]]


def prepare() -> None:
    """Imports what every network needs, so that a forked process need not; computes nothing."""
    import highspy  # noqa: F401
    import timm  # noqa: F401
    import torch._dynamo
    import torch._functorch.aot_autograd
    import torch._inductor.config  # noqa: F401
    import torchvision  # noqa: F401
    import transformers
    from transformers.models.auto import modeling_auto  # noqa: F401

    import lowtide.api.fit  # noqa: F401

    transformers.logging.set_verbosity_error()
    os.environ.setdefault("LOWTIDE_PLAN_CACHE", "0")


if __name__ == "__main__":
    sys.exit(main())
