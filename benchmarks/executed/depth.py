"""What depth costs: capture, the size of the generated code, compiling it, and the step that runs it.

`python -m benchmarks.executed.depth` writes `results/depth.md` and `.json`. Every network is equal layers between a stem and a
loss. Code with one function per distinct layer is compared with the straight line, which `routines.LEAST_RUNS` asks for.
"""

from __future__ import annotations

import argparse
import contextlib
import linecache
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import lowtide
from benchmarks.deep_networks import deep, names
from benchmarks.results_file import fresh_profiles, table, write
from benchmarks.stopwatch import Times, interleave, ratio, spread
from lowtide.api.captured_graph import captured_graph
from lowtide.ir.graph import Graph
from lowtide.ir.repetition import deepened
from lowtide.ir.simulate import simulate
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.runtime import routines
from lowtide.units import format_B, format_s

RESULTS = "depth"
CODE_DEPTHS = (8, 32, 128)
CAPTURE_DEPTHS = (4, 16, 64)
BUDGETS = ("100% of plain", "70% of plain")
STRAIGHT = 10**9
CODE_NOTE = (
    "Forward and backward together, of the plan in force. Lines and bytes of source, seconds of Python's compiler on it "
    "(least of five), and of the step: forward and backward, interleaved; the ratio is the median over rounds of the step "
    "with functions over the straight one, and A/A that of the straight one over another copy of itself."
)
CAPTURE_NOTE = (
    "Processor seconds from the model to its graph with predicted seconds, median of three in turn. Marked layers are "
    "called through torch.compiler.nested_compile_region: Dynamo traces one of them, AOTAutograd all of them. "
    "Repeated: the graph of 4 layers is captured, and repeated to as many."
)
DEEP_NOTE = (
    "From the file of a shallow network to the deep one's graph. Nothing is captured; an A100's seconds by roofline."
)


class Convolutions(nn.Module):
    """A bottleneck as in ResNet-50, at a quarter of its width."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        thin = width // 4
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, k, padding=k // 2, bias=False)
            for a, b, k in ((width, thin, 1), (thin, thin, 3), (thin, width, 1))
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(c) for c in (thin, thin, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            h = norm(convolution(h))
            h = F.relu(h if number < 2 else h + x)
        return h


class Attention(nn.Module):
    """A transformer's layer with dropout, norm first."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, 4, -1).transpose(1, 2) for t in self.mix(self.norms[0](x)).split(width, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + F.dropout(self.out(attended), 0.1, self.training)
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.norms[1](x)))), 0.1, self.training)


class Tower(nn.Module):
    """A stem, equal layers, and a loss."""

    def __init__(self, stem: nn.Module, layer: Callable[[], nn.Module], depth: int, *, marked: bool = False) -> None:
        super().__init__()
        self.stem = stem
        self.layers = nn.ModuleList(layer() for _ in range(depth))
        self.call = torch.compiler.nested_compile_region(_call) if marked else _call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.stem(x)
        for layer in self.layers:
            h = self.call(layer, h)
        return h.square().mean()


def _call(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x)  # type: ignore[no-any-return]


def convolutional(depth: int, *, marked: bool = False) -> tuple[Tower, torch.Tensor]:
    """Bottlenecks on eight images of 16 x 16."""
    torch.manual_seed(0)
    return Tower(nn.Conv2d(3, 64, 1), Convolutions, depth, marked=marked).train(), torch.randn(8, 3, 16, 16)


def transformer(depth: int, *, marked: bool = False) -> tuple[Tower, torch.Tensor]:
    """Attention on eight sequences of 64 tokens."""
    torch.manual_seed(0)
    return Tower(nn.Linear(16, 64), Attention, depth, marked=marked).train(), torch.randn(8, 64, 16)


NETWORKS: dict[str, Callable[..., tuple[Tower, torch.Tensor]]] = {
    "convolutions": convolutional,
    "transformer": transformer,
}


@dataclass(frozen=True)
class Code:
    """A model whose step runs one kind of generated code.

    Arguments:
        sources: of its forward and its backward.
    """

    model: nn.Module
    batch: torch.Tensor
    sources: tuple[str, ...]

    @property
    def lines(self) -> int:
        return sum(s.count("\n") for s in self.sources)

    @property
    def size_B(self) -> int:
        return sum(len(s) for s in self.sources)

    @property
    def functions(self) -> int:
        return sum(s.count("def layer") for s in self.sources)

    def compile_s(self) -> float:
        """Least of five."""
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            for source in self.sources:
                compile(source, "<depth>", "exec")
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    def step(self) -> Callable[[], None]:
        """What the stopwatch calls, and what that returns to be timed."""

        def run() -> None:
            self.model(self.batch).backward()
            self.model.zero_grad(set_to_none=True)

        return run


@contextlib.contextmanager
def _least_runs(runs: int) -> Iterator[None]:
    usual = routines.LEAST_RUNS
    routines.LEAST_RUNS = runs
    try:
        yield
    finally:
        routines.LEAST_RUNS = usual


def coded(make: Callable[..., tuple[Tower, torch.Tensor]], depth: int, budget: str, least: int) -> Code:
    """A model with its plan in force."""
    model, batch = make(depth)
    before = set(linecache.cache)
    with _least_runs(least):
        lowtide.fit(model, budget=budget, work=2_000)
        for _ in range(2):
            model(batch).backward()
            model.zero_grad(set_to_none=True)
    made = [n for n in linecache.cache if n.startswith("<lowtide") and n not in before]
    kinds = {n.split()[1]: n for n in made}  # the last of each kind is in force
    return Code(model, batch, tuple("".join(linecache.getlines(n)) for n in kinds.values()))


def code_rows(rounds: int) -> tuple[list[list[object]], list[dict[str, Any]]]:
    """One row per network, budget and depth."""
    rows: list[list[object]] = []
    numbers: list[dict[str, Any]] = []
    for name, make in NETWORKS.items():
        for budget in BUDGETS:
            for depth in CODE_DEPTHS:
                torch._dynamo.reset()
                kinds = {"functions": routines.LEAST_RUNS, "straight": STRAIGHT, "straight again": STRAIGHT}
                codes = {kind: coded(make, depth, budget, least) for kind, least in kinds.items()}
                times = interleave({kind: code.step for kind, code in codes.items()}, rounds)
                stats = [lowtide.memory_stats(code.model) for code in codes.values()]
                assert all(s.misplaced_allocations == s.spills == 0 for s in stats), (
                    "what left its place is not to be timed"
                )
                rows.append(_code_row(name, budget, depth, codes, times))
                numbers.append(dict(zip(CODE_COLUMNS, rows[-1], strict=True)))
    return rows, numbers


CODE_COLUMNS = (
    "network", "budget", "layers", "functions", "lines", "lines, straight", "source", "source, straight", "compile ms",
    "compile ms, straight", "step ms, straight", "step / straight", "A/A", "A/A spread",
)  # fmt: skip


def _code_row(name: str, budget: str, depth: int, codes: dict[str, Code], times: dict[str, Times]) -> list[object]:
    ours, straight = codes["functions"], codes["straight"]
    again = times["straight again"]
    return [
        name, budget, depth, ours.functions, ours.lines, straight.lines, format_B(ours.size_B), format_B(straight.size_B),
        f"{ours.compile_s() * 1e3:.1f}", f"{straight.compile_s() * 1e3:.1f}", f"{times['straight'].median_s * 1e3:.1f}",
        f"{ratio(times['functions'], times['straight']):.3f}", f"{ratio(again, times['straight']):.3f}",
        spread(again, times["straight"]),
    ]  # fmt: skip


def capture_rows(rounds: int) -> tuple[list[list[object]], list[dict[str, Any]]]:
    """One row per network and depth."""
    rows: list[list[object]] = []
    for name, make in NETWORKS.items():
        for depth in CAPTURE_DEPTHS:
            candidates = {
                "plain": partial(_capture, make, depth),
                "marked": partial(_capture, make, depth, marked=True),
                "repeated": partial(_repeated, make, depth),
            }
            found: dict[str, list[float]] = {candidate: [] for candidate in candidates}
            for _ in range(rounds):
                for candidate, capture in candidates.items():
                    start = time.process_time()
                    capture()
                    found[candidate].append(time.process_time() - start)
            seconds = [f"{statistics.median(s):.2f}" for s in found.values()]
            rows.append([name, depth, len(_capture(make, depth).program), *seconds])
    return rows, [dict(zip(CAPTURE_COLUMNS, row, strict=True)) for row in rows]


CAPTURE_COLUMNS = ("network", "layers", "operators", "plain s", "marked s", "repeated s")


def _capture(make: Callable[..., tuple[Tower, torch.Tensor]], depth: int, *, marked: bool = False) -> Graph:
    torch._dynamo.reset()
    model, batch = make(depth, marked=marked)
    return captured_graph(model, (batch,), machine="a100")


def _repeated(make: Callable[..., tuple[Tower, torch.Tensor]], depth: int) -> Graph:
    return deepened(_capture(make, CAPTURE_DEPTHS[0]), {"layers": depth})


def deep_rows() -> tuple[list[list[object]], list[dict[str, Any]]]:
    """One row per deep network of the planning tables."""
    rows: list[list[object]] = []
    for name in (*names(), "superneurons_9998"):
        start = time.process_time()
        graph = deep(name)
        made_s = time.process_time() - start
        peak_B = simulate(graph, keep_all_schedule(graph)).peak_B
        step_s = sum(graph.recipes[r].time_s for r in graph.program)
        rows.append([name, len(graph.program), f"{made_s:.1f}", format_B(peak_B), format_s(step_s)])
    return rows, [dict(zip(DEEP_COLUMNS, row, strict=True)) for row in rows]


DEEP_COLUMNS = ("network", "operators", "made in s", "keep-all peak", "step")


def main(arguments: list[str] | None = None) -> int:
    """Measures all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="of timed steps")
    given = parser.parse_args(arguments)
    fresh_profiles()
    deep_networks, captures, code = deep_rows(), capture_rows(3), code_rows(given.rounds)
    tables = [
        table("Generated code", CODE_COLUMNS, code[0], len(NETWORKS) * len(BUDGETS) * len(CODE_DEPTHS), CODE_NOTE),
        table("Capture", CAPTURE_COLUMNS, captures[0], len(NETWORKS) * len(CAPTURE_DEPTHS), CAPTURE_NOTE),
        table("Deep networks from shallow ones", DEEP_COLUMNS, deep_networks[0], len(names()) + 1, DEEP_NOTE),
    ]
    numbers = {"code": code[1], "capture": captures[1], "deep": deep_networks[1]}
    print(write(RESULTS, "What depth costs", tables, numbers).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
