"""Moving, carried out over links of stated rates: predicted and measured stalls and step times, and a model that does not fit."""

from __future__ import annotations

import json

from benchmarks.parts import Effort, Found, Part, Row, percent, rows_of
from benchmarks.results_file import MissingRow, table
from benchmarks.runner import answer_of
from lowtide.units import format_B

NETWORKS = ("gpt2", "resnet50", "unet")
SHARES = (0.5, 0.33)
RATES_GBps = (0.5, 1, 4)
KEYS = tuple(f"{name} {share}" for name in NETWORKS for share in SHARES)
_SIZES = {"gpt2, 4 layers": (4, 512, 2048), "gpt2, 8 layers": (8, 768, 4096)}
_SIZE_RATES = (2, 8)
SIZE_KEYS = tuple(f"{name}, {rate} GB/s" for name in _SIZES for rate in _SIZE_RATES)
MOST_s = 20.0  # of planning, per budget
_LINK_COLUMNS = (
    "network", "budget", "of keep-all", "link", "overhead predicted", "bound", "measured", "plain against itself", "bits equal",
    "sent per step", "stall predicted", "stall measured", "departures",
)  # fmt: skip
_SIZE_COLUMNS = (
    "model", "link each way", "weights, gradients, Adam", "budget", "proved floor", "reserved", "at home on the host", "bits equal",
    "step unlimited", "step inside", "ratio", "unlimited against itself", "predicted", "stall predicted", "stall measured",
    "sent, fetched per step", "of the link's time", "updates on the host",
)  # fmt: skip


def _measure_links(key: str, effort: Effort) -> list[Row]:
    name, share = key.split()
    rates = RATES_GBps[:1] if effort.quick else RATES_GBps
    rounds = 2 if effort.quick else effort.rounds
    found = answer_of(
        "_pool_link_run", name, share, json.dumps(rates), rounds, min(MOST_s, effort.limit_s), quiet=False
    )
    if any(row["plan"] and (not row["bits"] or row["departures"]) for row in found):
        raise MissingRow(f"{key}: {found}")
    return list(found)


def _links(found: Found) -> list[str]:
    rows = rows_of(found, KEYS)
    if not rows:
        return []
    note = (
        "`lowtide.fit` at a share of what keeping everything reserves, one thread, forward and backward, medians of interleaved "
        "rounds in one process; overheads are over keeping everything in an arena. Recompute: nothing may move. Else values may "
        "move to host memory outside the arena at the rate stated, each way, which the copy engines keep. Stall: seconds of a "
        "step in which compute waits for a copy. The machine had other work while all but the first key were measured: their seconds, "
        "stalls above all, are rough, as the column of plain against itself shows. Bits: loss and gradients, `torch.equal` to keeping everything."
    )
    return [table("Over links of stated rates", _LINK_COLUMNS, [_link_cells(r) for r in rows], len(rows), note)]


def _link_cells(row: Row) -> list[str]:
    head = [row["network"], format_B(row["budget_B"]), f"{row['share']:.0%}", row["variant"]]
    if not row["plan"]:
        return [*head, _why_none(row), *["-"] * (len(_LINK_COLUMNS) - 5)]
    return [
        *head,
        percent(row["predicted"]),
        percent(row["bound"]),
        percent(row["measured"]),
        row["spread"],
        "yes",
        format_B(row["sent_B"]),
        f"{row['predicted_stall_s'] * 1e3:.1f} ms",
        f"{row['stall_s'] * 1e3:.1f} ms",
        str(row["departures"]),
    ]


def _why_none(row: Row) -> str:
    if row["floor_B"] > row["budget_B"]:
        return f"proved impossible: floor {format_B(row['floor_B'])}"
    return f"no plan below {format_B(row['smallest_B'])}" if row["smallest_B"] is not None else "no plan"


def _measure_size(key: str, effort: Effort) -> list[Row]:
    name, _, rate = key.rpartition(", ")
    layers, width, words = _SIZES[name]
    rounds = 2 if effort.quick else effort.rounds
    row = answer_of(
        "_pool_size_run", layers, width, words, rate.split()[0], rounds, min(MOST_s, effort.limit_s), quiet=False
    )
    if not row["bits"] or row["departures"]:
        raise MissingRow(f"{key}: {row}")
    return [row]


def _sizes(found: Found) -> list[str]:
    rows = rows_of(found, SIZE_KEYS)
    if not rows:
        return []
    note = (
        "`lowtide.TrainStep` with AdamW on transformers' GPT-2, dropout on, one thread of compute (copies and updates on the host run on another core), in an arena of a quarter of what weights, "
        "gradients and Adam's two moments take; medians of interleaved steps in one process, beside the same whole step with "
        "12 GiB. Bits: parameters after steps from the same start, `torch.equal`. Of the link's time: bytes sent and fetched over "
        "what both directions could move in the measured step."
    )
    return [table("A model four times the budget", _SIZE_COLUMNS, [_size_cells(r) for r in rows], len(rows), note)]


def _size_cells(row: Row) -> list[str]:
    used = (row["sent_B"] + row["fetched_B"]) / (2 * row["rate_GBps"] * 1e9 * row["inside_s"])
    return [
        row["size"],
        f"{row['rate_GBps']:g} GB/s",
        format_B(row["kept_B"]),
        format_B(row["budget_B"]),
        format_B(row["floor_B"]),
        format_B(row["reserved_B"]),
        format_B(row["hosted_B"]),
        "yes",
        f"{row['free_s']:.2f} s",
        f"{row['inside_s']:.2f} s",
        f"{row['ratio']:.3f}",
        row["spread"],
        f"{row['predicted_s']:.2f} s",
        f"{row['predicted_stall_s'] * 1e3:.1f} ms",
        f"{row['stall_s'] * 1e3:.1f} ms",
        f"{format_B(row['sent_B'])}, {format_B(row['fetched_B'])}",
        f"{used:.0%}",
        str(row["host_runs"]),
    ]


LINK_PART = Part("links", KEYS, _measure_links, _links)
SIZE_PART = Part("size", SIZE_KEYS, _measure_size, _sizes)
