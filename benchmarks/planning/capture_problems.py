"""`python -m benchmarks.planning.capture_problems [--only NAME ...]`: real models, captured as graphs for planning.

Models and batches have no bytes: they are made on the meta device. Each is captured in a process of its own. What
planning does not read (arguments, geometries, lines of source) is left out of the files.
"""

from __future__ import annotations

import argparse
import sys

import msgspec
import torch

from benchmarks.problem_models import MACHINE, PROBLEMS, Model
from benchmarks.problem_set import FOLDER, load
from benchmarks.results_file import table
from benchmarks.runner import answer_of
from lowtide.api.captured_graph import captured_graph
from lowtide.ir.graph import Graph, Origin
from lowtide.ir.simulate import simulate
from lowtide.ir.text import save_graph
from lowtide.planners.bounds.floors import op_floor
from lowtide.planners.keep_all import keep_all_schedule
from lowtide.planners.reductions.stages import stage_program
from lowtide.units import format_B, format_s


def bare(graph: Graph, name: str) -> Graph:
    """A graph with everything that planning reads, and nothing else but the operators' names and modules."""
    values = tuple(msgspec.structs.replace(v, geometry=None) for v in graph.values)
    recipes = tuple(
        msgspec.structs.replace(
            r,
            reads=tuple(msgspec.structs.replace(read, views=(), geometry=None) for read in r.reads),
            paths=(),
            args=(),
            kwargs=(),
            origin=Origin(r.origin.module),
        )
        for r in graph.recipes
    )
    return msgspec.structs.replace(graph, values=values, recipes=recipes, name=name)


def capture(model: Model) -> Graph:
    """The graph of one training step, forward, loss and backward, with the seconds of the roofline."""
    torch.manual_seed(0)
    with torch.device("meta"):
        module, batch = model.make().train(), model.batch()
    graph = captured_graph(module, kwargs=batch, machine=MACHINE)
    return bare(graph, f"{model.name}, {model.size}, {MACHINE} by roofline")


def row(model: Model) -> tuple[object, ...]:
    """A problem's line in the manifest."""
    graph = load(model.name)
    plain = simulate(graph, keep_all_schedule(graph))
    floor_B = op_floor(stage_program(graph)).floor_B
    file_B = (FOLDER / f"{model.name}.json.gz").stat().st_size
    sizes = (format_B(graph.persistent_B), format_B(plain.peak_B), format_B(floor_B))
    return (
        model.name,
        model.source,
        model.size,
        len(graph.program),
        *sizes,
        format_s(plain.time_s),
        MACHINE,
        format_B(file_B),
    )


COLUMNS = ("name", "library", "batch", "operators", "persistent", "keep-all peak", "floor", "step", "machine", "file")
HEAD = f"""# Problems

One training step each, forward, loss and backward, of real, unmodified models in float32, captured without memory by
`python -m benchmarks.planning.capture_problems`. Operators are those that torch chooses on a CPU: attention with dropout is not
fused. Their seconds are the roofline's for machine `{MACHINE}` (`src/lowtide/profile/gpus.py`), their memory is their
outputs and the workspaces that the roofline knows. Batches of U-Net, VGG-16, ResNet-50, GoogLeNet and MobileNet-V2 are
those of MONeT's tables. Files are `lowtide.ir.text` graphs without what planning does not read:
`benchmarks.problem_set.load(name)`, or `lowtide plan benchmarks/problems/NAME.json.gz --budget "50% of plain"`.

`shallow/` has the networks from which `benchmarks.deep_networks` makes those of a thousand layers and more
(`python -m benchmarks.planning.capture_shallow`). `monet/` and `transformers/` have the graphs of the tables of implementations, with
arguments and geometries; MONeT's with the sum of outputs as loss and a P100's roofline, all of them return their loss
alone (`python -m benchmarks.implementations.capture_problems`). `pool/` has the networks of the tables of one pool, once each,
for any batch and any machine (`benchmarks.offload.networks`, `python -m benchmarks.offload.capture_problems`). `traces/` has recorded
executions of eager programs, of which `benchmarks.problem_set` makes graphs too.

"""


def write_manifest() -> None:
    """Writes `README.md` beside the problems."""
    models = [m for m in PROBLEMS.values() if (FOLDER / f"{m.name}.json.gz").exists()]
    text = table("Manifest", COLUMNS, [row(m) for m in models], len(models))
    (FOLDER / "README.md").write_text(HEAD + text)


def write_graph(name: str) -> str:
    """Captures and writes one, in a process of its own; says what it is."""
    graph = capture(PROBLEMS[name])
    save_graph(graph, FOLDER / f"{name}.json.gz")
    return f"{name} {len(graph.program)} operators"


def main(arguments: list[str] | None = None) -> int:
    """Captures the problems that are asked for, one process each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS), metavar="NAME")
    for name in parser.parse_args(arguments).only:
        print(answer_of(write_graph, name), flush=True)
    write_manifest()
    return 0


if __name__ == "__main__":
    sys.exit(main())
