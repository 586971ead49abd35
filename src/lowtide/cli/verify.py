"""`lowtide verify MODULE:FUNCTION`: plain and planned steps from the same state, compared bit by bit.

Every step is taken by a process of its own, in which the user's function makes the model anew: so the memory that is
needed is that of one step, and models that cannot be copied are verified too. This process only compares, and never
imports torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from lowtide.api.verify.compared_steps import compared
from lowtide.cli.failure import BROKEN, INTERRUPTED, REFUSED, UserCodeError, told
from lowtide.cli.implementations import Level, Without
from lowtide.cli.movement import HostBudget, Link
from lowtide.cli.target import load_target
from lowtide.errors import LowtideError
from lowtide.ir.numerics import parse_numerics
from lowtide.results.verification import Taken, Task
from lowtide.session.options import offload_options
from lowtide.units import parse_budget

_WORDS = {
    "plain": "a step of plain PyTorch",
    "planned": "a step inside the budget",
    "captured": "the captured program without a plan",
    "float64": "a step in float64",
}


def verify(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Importable from here, or path/to/file.py:FUNCTION; returns (model, args[, kwargs[, optimizer]]), the "
            "same every time it is called with the same seeds.",
        ),
    ],
    budget: Annotated[str, typer.Option(help='Bytes, "6GiB", "60%" of the device, or "60% of plain".')],
    steps: Annotated[int, typer.Option(min=1, help="Steps to take, one after another.")] = 2,
    host_budget: HostBudget = None,
    link: Link = None,
    numerics: Level = "exact",
    without: Without = None,
    work: Annotated[int | None, typer.Option(min=1, help="Effort: roughly that many proposed changes.")] = None,
    time_limit: Annotated[float | None, typer.Option(min=0.0, help="Stop searching after that many seconds.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed and work give the same plan.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Write what was found as one JSON object.")] = False,
) -> None:
    """Compare a planned training step with plain PyTorch's, bit by bit, on this machine."""
    with told():
        parse_budget(budget)  # a typing error should not cost the import of torch
        level = parse_numerics(numerics)
        offload_options(host_budget, link)
        planned = {
            "budget": budget, "host_budget": host_budget, "link": link, "numerics": numerics, "without": without,
            "seed": seed, "work": work, "time_limit_s": time_limit,
        }  # fmt: skip
        planned = {name: option for name, option in planned.items() if option is not None}
        with tempfile.TemporaryDirectory(prefix="lowtide-verify-") as name, Console(stderr=True).status("") as status:
            folder = Path(name)

            def take(task: Task) -> Taken:
                status.update(f"taking {_WORDS[task.kind]}{', operator by operator' if task.observed else ''}")
                return take_in_process(target, task, planned, folder / "taken.json")

            found = compared(take, level, steps, folder)
        Console().print(found.to_json() if as_json else found.explain(), markup=False, highlight=False, soft_wrap=True)
    if not found.kept:
        raise typer.Exit(BROKEN if found.plain_agrees else REFUSED)


def take_in_process(target: str, task: Task, planned: dict[str, Any], answer: Path) -> Taken:
    """Carries out a task in a process of its own.

    Raises:
        typer.Exit: with the exit code of that process, which has said what is wrong.
    """
    order = msgspec.json.encode({"target": target, "task": task, "planned": planned, "answer": str(answer)})
    command = [sys.executable, "-c", "from lowtide.cli.verify import carry_out; carry_out()"]
    environment = {"PYTHONHASHSEED": "0", **os.environ}  # sets come in the same order in every process
    done = subprocess.run(command, input=order, stdout=sys.stderr.fileno(), env=environment, check=False)
    if done.returncode:
        raise typer.Exit(done.returncode if done.returncode in (BROKEN, REFUSED, INTERRUPTED) else BROKEN)
    return msgspec.json.decode(answer.read_bytes(), type=Taken)


def carry_out(order: bytes | None = None) -> None:
    """Takes the steps of the task on standard input, with the model that the user's function makes.

    Arguments:
        order: in the place of standard input.

    Raises:
        SystemExit: with an exit code, if the user's function or lowtide raises; what is wrong has been said.
    """
    given = msgspec.json.decode(sys.stdin.buffer.read() if order is None else order)
    try:
        with told():
            taken = take_here(given["target"], msgspec.convert(given["task"], Task), given["planned"])
    except typer.Exit as end:
        raise SystemExit(end.exit_code) from None
    Path(given["answer"]).write_bytes(msgspec.json.encode(taken))


def take_here(target: str, task: Task, planned: dict[str, Any]) -> Taken:
    from lowtide.api.verify.taking_steps import Subject, seed_generators, take

    seed_generators()
    loaded = load_target(target)
    subject = Subject(loaded.model, loaded.args, loaded.kwargs, loaded.optimizer)
    try:
        return take(subject, task, planned)
    except LowtideError:
        raise
    except Exception as error:
        if task.kind != "plain":
            raise
        raise UserCodeError("a step of plain PyTorch") from error
