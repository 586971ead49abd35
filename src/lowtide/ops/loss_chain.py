"""Where a program turns logits into a loss and the loss into the logits' gradient: log-softmax, and what reads it.

Torch-free. Found by operator names, arguments and geometry; anything else that reads a value in between rules it out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from lowtide.ir.call import Arg, Const, Items, Read, Ref, View
from lowtide.ir.geometry import Geometry
from lowtide.ir.graph import Recipe
from lowtide.ops.builder import GraphBuilder

_LOG_SOFTMAX = "aten._log_softmax.default"
_LOSS = "aten.nll_loss_forward.default"
_LOSS_BACKWARD = "aten.nll_loss_backward.default"
_LOG_SOFTMAX_BACKWARD = "aten._log_softmax_backward_data.default"
_COPY = "aten._to_copy.default"
_CLONE = "aten.clone.default"
_SLICE_BACKWARD = "aten.slice_backward.default"


@dataclass(frozen=True, slots=True)
class LossChain:
    """Cross-entropy as a program has it, from logits to their gradient.

    Arguments:
        logits: [N, V], contiguous, before it is copied to another dtype.
        targets: [N]; of the rows in `kept` alone, if that is not None.
        weight: of classes; None for ones.
        reduction, ignore_index: as torch's operators take them; 0 none, 1 mean, 2 sum.
        dtype: in which the log-softmax is taken.
        kept: rows come in texts of a length; those from one to another of each have targets. None for all rows.
        forward: the recipe whose outputs are `loss` and `total`, the sum of the weights.
        backward: the recipe that makes `gradient`, the logits'; None where nothing is trained.
        upstream: the loss's gradient, as the chain reads it.
        recipes: of the program, all that the chain is made of.
    """

    logits: Read
    targets: Read
    weight: Read | None
    reduction: int
    ignore_index: int
    dtype: str
    forward: Recipe
    loss: int
    total: int
    recipes: tuple[int, ...]
    kept: tuple[int, int, int] | None = None
    backward: Recipe | None = None
    upstream: Read | None = None
    gradient: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and classes."""
        rows, classes = shape_of(self.logits)
        return rows, classes

    @property
    def constants(self) -> tuple[Arg, ...]:
        """What every kernel takes after targets and weight: reduction, ignored target, dtype, rows that are kept."""
        kept = None if self.kept is None else Items(self.kept)
        return self.reduction, self.ignore_index, Const("dtype", self.dtype), kept


def shape_of(read: Read) -> tuple[int, ...]:
    """The shape of what is passed."""
    assert read.geometry is not None
    return read.geometry.shape


def is_dense(geometry: Geometry | None) -> bool:
    """Whether elements lie in order without gaps from the start of the storage."""
    if geometry is None or geometry.offset:
        return False
    expected = 1
    for extent, stride in zip(reversed(geometry.shape), reversed(geometry.stride), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def is_whole(builder: GraphBuilder, read: Read) -> bool:
    """Whether a read shows all of a dense value, in order, however it is shaped."""
    own, seen = builder.values[read.value].geometry, read.geometry
    return own is not None and seen is not None and is_dense(own) and is_dense(seen) and own.numel == seen.numel


def as_matrix(builder: GraphBuilder, value: int, rows: int, columns: int) -> Read:
    """A dense value seen as a matrix."""
    own = builder.values[value].geometry
    assert own is not None
    if own.shape == (rows, columns):
        return builder.read(value)
    shape = Items((rows, columns))
    geometry = replace(own, shape=(rows, columns), stride=(columns, 1))
    return Read(value, (View("aten.view.default", (Ref(0), shape)),), geometry)


def loss_chains(builder: GraphBuilder) -> Iterator[LossChain]:
    """Every cross-entropy over the rows of a matrix of logits, in the program's order."""
    for log_softmax in list(builder.calls(_LOG_SOFTMAX)):
        chain = _forward(builder, log_softmax)
        if chain is not None:
            yield chain


def only(builder: GraphBuilder, value: int, ops: Sequence[str]) -> list[Recipe] | None:
    """The recipes that read an inner value, one per operator name; None if others do, or it leaves."""
    if builder.values[value].leaves is not None:
        return None
    readers = [builder.recipes[r] for r in builder.readers.get(value, [])]
    return readers if sorted(r.op for r in readers) == sorted(ops) else None


def _forward(builder: GraphBuilder, log_softmax: Recipe) -> LossChain | None:
    """The chain that begins with a log-softmax; None where it has another form."""
    read, value = log_softmax.reads[0], log_softmax.outputs[0]
    if log_softmax.args not in ((Ref(0), 1, False), (Ref(0), -1, False)) or read.geometry is None:
        return None
    if len(read.geometry.shape) != 2 or not is_whole(builder, read) or not is_dense(builder.values[value].geometry):
        return None
    trained = only(builder, value, (_LOSS, _LOSS_BACKWARD, _LOG_SOFTMAX_BACKWARD))
    readers = trained or only(builder, value, (_LOSS,))
    loss = next((r for r in readers or () if r.op == _LOSS), None)
    if loss is None or loss.args[:2] != (Ref(0), Ref(1)) or len(loss.outputs) != 2 or loss.reads[0].views:
        return None
    weight, reduction, ignore_index = loss.args[2:]
    if not isinstance(reduction, int) or not isinstance(ignore_index, int) or len(shape_of(loss.reads[1])) != 1:
        return None
    chain = LossChain(
        logits=read,
        targets=loss.reads[1],
        weight=loss.reads[weight.index] if isinstance(weight, Ref) else None,
        reduction=reduction,
        ignore_index=ignore_index,
        dtype=read.geometry.dtype,
        forward=loss,
        loss=loss.outputs[0],
        total=loss.outputs[1],
        recipes=(log_softmax.id, loss.id),
    )
    backward = chain if trained is None else _backward(builder, chain, trained)
    if backward is None:
        return None
    whole = _without_copies(builder, _without_slice(builder, backward))
    return whole if whole.kept is not None else _without_slice(builder, whole)  # a slice may come before the copies


def _backward(builder: GraphBuilder, chain: LossChain, readers: list[Recipe]) -> LossChain | None:
    first = next(r for r in readers if r.op == _LOSS_BACKWARD)
    last = next(r for r in readers if r.op == _LOG_SOFTMAX_BACKWARD)
    weighted = chain.weight is not None
    expected = (Ref(0), Ref(1), Ref(2), Ref(3) if weighted else None, chain.reduction, chain.ignore_index)
    if first.args != (*expected, Ref(4 if weighted else 3)) or last.args[:2] != (Ref(0), Ref(1)):
        return None
    if last.args[2] not in (1, -1) or last.args[3:] != (Const("dtype", chain.dtype),):
        return None
    alone = only(builder, first.outputs[0], (_LOG_SOFTMAX_BACKWARD,))
    same = first.reads[2] == chain.targets and first.reads[-1].value == chain.total
    if alone is None or not same or last.reads[0].value != first.outputs[0]:
        return None
    if not is_dense(builder.values[last.outputs[0]].geometry):
        return None
    return dataclasses.replace(
        chain,
        backward=last,
        upstream=first.reads[0],
        gradient=last.outputs[0],
        recipes=(*chain.recipes, first.id, last.id),
    )


def _without_slice(builder: GraphBuilder, chain: LossChain) -> LossChain:
    """The same chain for all rows of every text, where it is taken of a copy of some: the others have no target."""
    copied = builder.made_by(chain.logits.value)
    alone = only(
        builder, chain.logits.value, tuple(builder.recipes[r].op for r in builder.readers[chain.logits.value][:1])
    )
    if copied is None or copied.op != _CLONE or copied.args != (Ref(0),) or alone is None or chain.reduction == 0:
        return chain
    kept = _kept(builder, copied.reads[0], chain.shape[1])
    if kept is None:
        return chain
    own = builder.values[copied.reads[0].value].geometry
    assert own is not None
    shape = (own.numel // chain.shape[1], chain.shape[1])
    logits = as_matrix(builder, copied.reads[0].value, *shape)
    if chain.gradient is None:
        return dataclasses.replace(chain, logits=logits, kept=kept, recipes=(copied.id, *chain.recipes))
    back = only(builder, chain.gradient, (_SLICE_BACKWARD,))
    if (
        back is None
        or not is_whole(builder, back[0].reads[0])
        or not is_dense(builder.values[back[0].outputs[0]].geometry)
    ):
        return chain
    length, first, _ = kept
    sizes, dim, start, _, step = back[0].args[1:]
    texts = (shape[0] // length, length, shape[1])
    begins = start + length if isinstance(start, int) and start < 0 else start
    if sizes != Items(texts) or (dim, step, begins) != (1, 1, first):
        return chain
    recipes = (copied.id, *chain.recipes, back[0].id)
    gradient = back[0].outputs[0]
    return dataclasses.replace(chain, logits=logits, kept=kept, recipes=recipes, backward=back[0], gradient=gradient)


def _kept(builder: GraphBuilder, read: Read, classes: int) -> tuple[int, int, int] | None:
    """Of a read [texts, rows, V] of a larger dense value, how long texts are, and which rows of each it shows."""
    own, seen = builder.values[read.value].geometry, read.geometry
    if own is None or seen is None or not is_dense(own) or len(seen.shape) != 3 or seen.shape[2] != classes:
        return None
    texts, rows, _ = seen.shape
    if not texts or own.numel % (texts * classes) or seen.offset % classes:
        return None
    length, first = own.numel // (texts * classes), seen.offset // classes
    steps = (length * classes if texts > 1 else seen.stride[0], classes if rows > 1 else seen.stride[1], 1)
    return (length, first, first + rows) if seen.stride == steps and first + rows <= length else None


def _without_copies(builder: GraphBuilder, chain: LossChain) -> LossChain:
    """The same chain in the logits' own dtype at both ends, where the other one is a copy's and only the chain's."""
    there = builder.made_by(chain.logits.value)
    if there is None or not is_cast(builder, there) or len(builder.readers[chain.logits.value]) != 1:
        return chain
    if builder.values[chain.logits.value].leaves is not None:
        return chain
    assert chain.logits.geometry is not None
    source = there.reads[0]
    assert source.geometry is not None
    logits = Read(
        source.value,
        (*source.views, *chain.logits.views),
        replace(chain.logits.geometry, dtype=source.geometry.dtype),
    )
    if chain.gradient is None or chain.backward is None:
        return dataclasses.replace(chain, logits=logits, recipes=(there.id, *chain.recipes))
    back = only(builder, chain.gradient, (_COPY,))
    if back is None or not is_cast(builder, back[0]) or builder.values[back[0].outputs[0]].geometry is None:
        return chain
    own = builder.values[back[0].outputs[0]].geometry
    if own is None or own.dtype != source.geometry.dtype:
        return chain
    return dataclasses.replace(
        chain,
        logits=logits,
        backward=back[0],
        gradient=back[0].outputs[0],
        recipes=(there.id, *chain.recipes, back[0].id),
    )


def is_cast(builder: GraphBuilder, recipe: Recipe) -> bool:
    """Whether a recipe copies all of a dense value to another dtype, and changes nothing else."""
    if recipe.op != _COPY or recipe.args != (Ref(0),):
        return False
    whole = is_whole(builder, recipe.reads[0]) and is_dense(builder.values[recipe.outputs[0]].geometry)
    device = "" if recipe.reads[0].geometry is None else recipe.reads[0].geometry.device
    wanted = dict(recipe.kwargs)
    same = all(not arg or _is_same(name, arg, device) for name, arg in wanted.items() if name != "dtype")
    return whole and same and wanted.get("dtype") is not None


def _is_same(name: str, arg: Arg, device: str) -> bool:
    """Whether an argument asks a copy for what there is already."""
    if not isinstance(arg, Const):
        return False
    return (name == "layout" and arg.text == "strided") or (name == "device" and arg.text.split(":")[0] == device)
