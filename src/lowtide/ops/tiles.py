"""A run of elementwise operators, carried out tile by tile, so that what lies between them never exists whole.

Every tile goes through all steps before the next one begins. What lies between two steps is one tile in a scratch
buffer, which stays in the processor's cache. The steps are torch's own operators on slices.

Exactness. Vector code computes whole vectors of elements, and what is left over at the end of a thread's share by
other instructions, which may round differently. Where all tensors are one row of elements, tiles are cut so that each
element is computed as when the operator runs on the whole (`lowtide.ops.boxes`). Where they are not, steps have to be
of those that leave no choice (`elementwise.ROUNDED`), or rows whole vectors; the family sees to that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lowtide.ir.call import Arg, Const, NamedArg, Ref
from lowtide.ir.geometry import ITEM_B
from lowtide.ir.graph import Graph, Recipe
from lowtide.ops.base import Kernel
from lowtide.ops.boxes import GRAIN, aligned, boxes
from lowtide.ops.elementwise import NUMBERS, writer
from lowtide.ops.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

_GRAINS = 2
"""Shares of a thread in a tile: with fewer elements the calls take too long, with more the cache is too small."""
_ELSEWHERE = 1 << 22
"""Elements of a tile on a device that is not the CPU: enough for its launch to be worth it."""
_ALIGN_B = 64
_OPERANDS = 2  # arguments before what a run is given


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One operator of a run.

    Arguments:
        op: a name of `lowtide.ops.elementwise`.
        args, kwargs: `Ref(i)` is the i-th tensor given, `Ref(-1 - j)` the result of the j-th step.
        dtype: of its result.
    """

    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[NamedArg, ...]
    dtype: str


class Tiles(msgspec.Struct, frozen=True, array_like=True):
    """A run: how many tensors it is given, its steps, and the steps whose results are wanted."""

    given: int
    steps: tuple[Step, ...]
    wanted: tuple[int, ...]

    @property
    def text(self) -> str:
        """The run as an argument of a recipe, whatever the sizes."""
        return msgspec.json.encode(self).decode()

    def place(self, ref: Ref) -> int:
        """Where an operand is in the list of what is given, followed by results."""
        return ref.index if ref.index >= 0 else self.given - 1 - ref.index


class _Call(NamedTuple):
    """A step ready to run: `args` holds (whether it is an operand, its place or the constant)."""

    write: Callable[..., Any]
    into: str
    args: tuple[tuple[bool, Any], ...]
    kwargs: dict[str, Any]


class _Ready(NamedTuple):
    """A run ready to be carried out. Operands are in a row: what is given, numbers as tensors, results.

    Arguments:
        calls: one per step.
        numbers: what has to be a tensor without dimensions, and its dtype.
        slot_of: per step where its result lies: the number of a slot in the scratch buffer or, from -1 down, an output.
        slots: dtype of each slot.
        copies: (step, output) of results that are copied at the end, as others still read what they overwrite.
        dtypes: of the outputs.
    """

    calls: tuple[_Call, ...]
    numbers: tuple[tuple[float, str], ...]
    slot_of: tuple[int, ...]
    slots: tuple[str, ...]
    copies: tuple[tuple[int, int], ...]
    dtypes: tuple[str, ...]


def tiled(
    text: str, sizes: Sequence[tuple[Sequence[int], Sequence[int]]], *given: Tensor, into: Tensor | None = None
) -> Any:
    """Carries a run out.

    Arguments:
        text: of `Tiles`.
        sizes: shape and stride of each wanted result, all dense and in one order in memory.
        given: what the steps read, of the first result's shape or broadcast to it, or of as many elements in one row.
        into: the one of them that the first result overwrites; nobody else has its elements.

    Returns: the wanted result, or a tuple of them.
    """
    over = None if into is None else next(i for i, t in enumerate(given) if t.data_ptr() == into.data_ptr())
    dtypes = tuple(str(t.dtype).removeprefix("torch.") for t in given)
    run = made_ready(text, over, dtypes, given[0].device.type == "cpu")
    results = [
        torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device=given[0].device)
        if into is None or i
        else into.as_strided(shape, stride, into.storage_offset())
        for i, ((shape, stride), dtype) in enumerate(zip(sizes, run.dtypes, strict=True))
    ]
    if results[0].numel():
        carry_out(run, given, results)
    return results[0] if len(results) == 1 else tuple(results)


def carry_out(run: _Ready, given: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Computes a run's results, tile by tile."""
    cpu = results[0].device.type == "cpu"
    threads = torch.get_num_threads() if cpu else 1
    tile = _GRAINS * GRAIN * threads if cpu else _ELSEWHERE
    shape, operands = aligned((*given, *results), results[0])
    slots, numbers = _scratch(run, min(tile, results[0].numel()), results[0])
    shaped: tuple[Any, list[Tensor]] = ((), [])  # the slots in the shape of the last tile
    for box in boxes(shape, threads, tile):
        where = box if len(box) > 1 else box[0]  # a tuple takes longer
        tiles = [t[where] if t.dim() else t for t in operands]
        outputs = tiles[len(given) :]
        passed = [*tiles[: len(given)], *numbers]
        if shaped[0] != outputs[0].shape:
            shaped = (outputs[0].shape, [s[: outputs[0].numel()].view(outputs[0].shape) for s in slots])
        for call, slot in zip(run.calls, run.slot_of, strict=True):
            place = outputs[-1 - slot] if slot < 0 else shaped[1][slot]
            call.write(*[passed[a] if is_read else a for is_read, a in call.args], **call.kwargs, **{call.into: place})
            passed.append(place)
        for step, output in run.copies:
            outputs[output].copy_(passed[len(given) + len(numbers) + step])


def _scratch(run: _Ready, count: int, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """One tile per slot, and the numbers as tensors, in one allocation."""
    dtypes = (*run.slots, *(dtype for _, dtype in run.numbers))
    if not dtypes:
        return [], []
    counts = [count] * len(run.slots) + [1] * len(run.numbers)
    sizes_B = [_slot_B(n, dtype) for n, dtype in zip(counts, dtypes, strict=True)]
    parts = torch.empty(sum(sizes_B), dtype=torch.uint8, device=like.device).split_with_sizes(sizes_B)
    typed = [p[: n * ITEM_B[d]].view(getattr(torch, d)) for p, n, d in zip(parts, counts, dtypes, strict=True)]
    numbers = [t[0] for t in typed[len(run.slots) :]]
    for tensor, (number, _) in zip(numbers, run.numbers, strict=True):
        tensor.fill_(number)
    return typed[: len(run.slots)], numbers


def _slot_B(count: int, dtype: str) -> int:
    return -(-count * ITEM_B[dtype] // _ALIGN_B) * _ALIGN_B


@functools.lru_cache(maxsize=4096)
def made_ready(text: str, over: int | None, given: tuple[str, ...], cpu: bool) -> _Ready:
    """Reads a run.

    Arguments:
        over: which of the given tensors is overwritten.
        given: their dtypes.
        cpu: whether a number would be allocated as a tensor at every call.
    """
    run = msgspec.json.decode(text, type=Tiles)
    slot_of, slots, copies = _places(run, over)
    dtypes = (*given, *(step.dtype for step in run.steps))
    found = (_number(run, step, dtypes) for step in run.steps if cpu)
    numbers = dict.fromkeys(number for number in found if number is not None)
    place = {number: len(given) + i for i, number in enumerate(numbers)}
    calls = []
    for step in run.steps:
        write, keyword = writer(step.op)
        args: list[tuple[bool, Any]] = []
        for i, arg in enumerate(step.args):
            number = _number(run, step, dtypes) if i == 1 and cpu else None
            if isinstance(arg, Ref):
                args.append((True, arg.index if arg.index >= 0 else len(given) + len(numbers) - 1 - arg.index))
            elif number is not None:
                args.append((True, place[number]))
            else:
                args.append((False, _constant(arg)))
        calls.append(_Call(write, keyword, tuple(args), {k: _constant(a) for k, a in step.kwargs}))
    wanted = tuple(run.steps[step].dtype for step in run.wanted)
    return _Ready(tuple(calls), tuple(numbers), slot_of, slots, copies, wanted)


def _number(run: Tiles, step: Step, dtypes: Sequence[str]) -> tuple[float, str] | None:
    """The number of which a step makes a tensor, and that one's dtype: its first operand's."""
    if step.op not in NUMBERS:
        return None
    first, number = step.args[:2]
    return (number, dtypes[run.place(first)]) if isinstance(first, Ref) and isinstance(number, int | float) else None


def _constant(arg: Arg) -> Any:
    if not isinstance(arg, Const):
        return arg
    return float(arg.text) if arg.kind == "float" else getattr(torch, arg.text.removeprefix("torch."))


def _places(run: Tiles, over: int | None) -> tuple[tuple[int, ...], tuple[str, ...], tuple[tuple[int, int], ...]]:
    """Where results lie: outputs in place; the others in as few slots as their lives need, one over a dead one."""
    last_read = {run.place(a): i for i, step in enumerate(run.steps) for a in step.args if isinstance(a, Ref)}
    outputs = {step: output for output, step in enumerate(run.wanted)}
    copies = []
    if over is not None and last_read.get(over, -1) > run.wanted[0]:
        copies.append((run.wanted[0], 0))
        del outputs[run.wanted[0]]
    kept = {step for step, _ in copies}
    slots: list[str] = []
    free: list[int] = []
    slot_of: list[int] = []
    for i, step in enumerate(run.steps):
        for operand in dict.fromkeys(run.place(a) - run.given for a in step.args if isinstance(a, Ref)):
            dead = operand >= 0 and last_read[operand + run.given] == i and operand not in kept
            if dead and slot_of[operand] >= 0:
                free.append(slot_of[operand])
        if i in outputs:
            slot_of.append(-1 - outputs[i])
            continue
        slot = next((s for s in free if slots[s] == step.dtype), None)
        if slot is None:
            slot = len(slots)
            slots.append(step.dtype)
        else:
            free.remove(slot)
        slot_of.append(slot)
    return tuple(slot_of), tuple(slots), tuple(copies)


def _scratch_B(graph: Graph, recipe: Recipe) -> int:
    """Bytes of the slots, on one thread."""
    result = graph.values[recipe.outputs[0]].geometry
    text = recipe.args[0]
    if result is None or not isinstance(text, str):
        return 0
    tile = min(result.numel, _GRAINS * GRAIN if result.device == "cpu" else _ELSEWHERE)
    into = next((a for k, a in recipe.kwargs if k == "into"), None)
    over = recipe.args.index(into) - _OPERANDS if into is not None else None
    slots = _places(msgspec.json.decode(text, type=Tiles), over)[1]
    return sum(_slot_B(tile, dtype) for dtype in slots)


TILED = Kernel(tiled, workspace_B=_scratch_B)
BY_ROWS = Kernel(tiled, workspace_B=_scratch_B, by_size=True)
