"""Peak, step time and correctness of what people use today, and of lowtide in the same bytes, in one run per network.

Plain eager, `torch.utils.checkpoint` per block, selective checkpointing, saved tensors on the host, and stock
`torch.compile` with `activation_memory_budget`; dropout is on, as users have it.

`python -m benchmarks.executed.side_by_side [--only NAME ...]` writes `results/side_by_side.md` and `.json`; networks that a run
leaves out keep the rows of an earlier one. It fails if a row is missing, or if lowtide's bits differ from eager's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from benchmarks.executed.side_by_side_networks import BUDGETS, NETWORKS, USUAL
from benchmarks.results_file import MissingRow, read_numbers, table, write
from benchmarks.runner import answer_of

COLUMNS = {
    "network": "network", "variant": "variant", "peak": "its peak, MB", "host": "on the host, MB", "time": "its time / eager",
    "right": "its result", "reserved": "lowtide reserved, MB", "bits": "lowtide's result", "departures": "departures and spills",
    "ours": "lowtide time / eager", "over": "lowtide / variant",
}  # fmt: skip
NOTE = (
    "Bytes beside parameters, buffers and batch. Its peak: live bytes of a warm forward and backward, from allocator events. "
    "Lowtide reserved: in an arena of the variant's peak, holes and what is set aside included. Times: medians of interleaved "
    "rounds, both sides warm, eager and its variants on malloc's heap kept warm, lowtide's plans in one arena. Result: one step "
    "from the same state and seed, `torch.equal` in loss, gradients, buffers and generator, or the norm of the difference over the "
    "norm. Where there is dropout, stock torch.compile draws other random numbers than eager and is compared with its own "
    "budget of 1 instead: below 1 its backward draws new masks, and the gradients are not those of the forward "
    "(pytorch#190758). Saved tensors on the host: the hooks of `save_on_cpu` copy nothing between a CPU and itself, so they copy to "
    "memory outside torch's allocator here, at the speed of memory; a GPU's bus is slower. Stock torch.compile "
    "fuses kernels, lowtide runs torch's own unchanged: where the last column is above 1, lowtide loses."
)
Row = dict[str, Any]
_WITHOUT_STOCK = 5  # rows of a network beside those of stock torch.compile


def run(name: str, rounds: int, budgets: tuple[float, ...]) -> list[Row]:
    """One network in a process of its own; its progress goes to stderr.

    Raises:
        RuntimeError: if it failed.
        MissingRow: if it left a variant out.
    """
    rows: list[Row] = answer_of("_side_by_side_run", name, rounds, json.dumps(budgets), quiet=False)
    if len(rows) != _WITHOUT_STOCK + len(budgets):
        raise MissingRow(f"{name}: {len(rows)} rows of {_WITHOUT_STOCK + len(budgets)}")
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Runs and writes the table; 1 if lowtide's bits differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(USUAL), choices=list(NETWORKS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budgets", nargs="*", type=float, help="of stock torch.compile, instead of the usual ones")
    parser.add_argument("--try", dest="trial", action="store_true", help="write side_by_side_quick and merge nothing")
    options = parser.parse_args(arguments)
    found: dict[str, list[Row]] = {}
    begin = time.perf_counter()
    for name in options.only:
        budgets = BUDGETS[name] if options.budgets is None else tuple(options.budgets)
        found[name] = run(name, options.rounds, budgets)
        sys.stderr.write(f"{name}: {time.perf_counter() - begin:.0f} s in all\n")
        sys.stderr.flush()
    if not options.trial:
        earlier = read_numbers("side_by_side")
        found = (earlier if isinstance(earlier, dict) else {}) | found
    rows = [[row[key] for key in COLUMNS] for name in NETWORKS for row in found.get(name, [])]
    expected = sum(len(found[name]) for name in NETWORKS if name in found)
    tables = [table("Peak, time and result", list(COLUMNS.values()), rows, expected, NOTE)]
    path = write("side_by_side_quick" if options.trial else "side_by_side", "Side by side", tables, found)
    sys.stdout.write(path.read_text())
    wrong = [row for rows in found.values() for row in rows if row["bits"] not in ("equal", "-")]
    sys.stderr.writelines(f"BROKEN: {row['network']}, {row['variant']}: {row['bits']}\n" for row in wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
