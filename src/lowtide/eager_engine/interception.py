"""One operator of the program: its inputs are brought back and pinned, it runs, and what it made is noted.

RULES
- A storage seen for the first time is a leaf, and is brought into the arena where it may be moved (`arrivals.py`).
- An operator that writes over a value *consumes* it: the new content keeps the bytes, the old one can be made again.
- An operator that writes over a leaf cannot be undone: whatever is alive and could be asked to be made again from the
  old content is made resident first and *committed*, that is, kept as a leaf itself.
- What an optimizer's step makes is kept, and what it writes is committed: none of it is ever made again.
- An operator that cannot be run again (unknown arguments, tensors that are no plain ones, results beside a leaf that
  it writes over) keeps what it makes.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lowtide.device import storage as storages
from lowtide.device.arena import nothing_engaged
from lowtide.eager_engine.arrivals import Arrivals
from lowtide.eager_engine.bodies import NOWHERE, Bodies
from lowtide.eager_engine.closure import Closure, form_of
from lowtide.eager_engine.keeper import Keeper
from lowtide.eager_engine.kernels import Kernels
from lowtide.eager_engine.ledger import Value
from lowtide.eager_engine.operators import Operator, tensors_in, tensors_of
from lowtide.eager_engine.prices import cost_ns
from lowtide.eager_engine.randomness import draw
from lowtide.eager_engine.recorder import Recorder, ids
from lowtide.eager_engine.recorder import made as made_of
from lowtide.eager_engine.setting import present_setting
from lowtide.eager_engine.steps import Steps
from lowtide.errors import EagerError


@dataclass(slots=True)
class _Made:
    """What an operator made and wrote.

    Arguments:
        places: of each output: a position among its results, or -1 - i for what it wrote over input i.
        storages: of each output.
        consumes: as in `Ledger.call`.
    """

    places: list[int] = field(default_factory=list)
    storages: list[torch.UntypedStorage] = field(default_factory=list)
    consumes: list[tuple[int, int]] = field(default_factory=list)


class Interceptor:
    """See the module."""

    def __init__(
        self, bodies: Bodies, keeper: Keeper, arrivals: Arrivals, kernels: Kernels, steps: Steps, recorder: Recorder
    ) -> None:
        self._bodies = bodies
        self._keeper = keeper
        self._arrivals = arrivals
        self._kernels = kernels
        self._steps = steps
        self._recorder = recorder
        self.is_spoilt = False  # what is evicted cannot be made again: a foreign operator wrote what it came from

    def perform(self, op: Operator, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator of the program, and returns what it returns.

        Raises:
            torch.OutOfMemoryError: if it does not fit beside what cannot be evicted.
        """
        if self._recorder.is_on:
            self._kernels.sweep()
            self._recorder.settle()
        else:
            self._kernels.catch_up()
        tensors = list(tensors_of(args, kwargs))
        plain = [t for t in tensors if is_plain(t)]
        inputs = self._values(tensors)
        inputs = [self._arrivals.renew(value) if self._bodies.is_stale(value) else value for value in inputs]
        written = self._written(op, func, args, kwargs)
        spared = bool(written) and op.hidden is not None and bool(op.hidden.spare)
        form, read = None, [v for v in inputs if v not in written] if spared else inputs
        leaves_over = 0 if spared else sum(value.call is None for value in written)
        writes_twice = leaves_over > 0 and (op.makes or leaves_over < len(written))  # if it ran again
        can_repeat = op.is_known and not writes_twice and not (op.is_out and len(written) > 1)
        if can_repeat and len(plain) == len(tensors) and not self._steps.is_stepping:
            places = {self._bodies[value].address: i for i, value in enumerate(read)}
            form = form_of(op, func, args, kwargs, places, spared=spared)
        with self._kernels.entered(inputs, op.name, read):
            consumed = [] if spared else [value for value in written if value.call is not None]
            self._before_writing(written, consumes=form is not None and not spared)
            for value in written if op.communicates else ():
                self._bodies[value].fixed = True  # whoever is told to read or write there later has the address
            digests = self._digests(value for value in inputs if op.is_foreign and value not in written)
            drawn = draw(args, kwargs) if op.is_random else None
            kernel = _twice_alike(func, args, kwargs, op) if spared else lambda: func(*args, **kwargs)
            like = None if form is None else self._kernels.likeness(op.name, form.args, form.kwargs)
            is_clean = spared or not (written or op.is_out)
            over = consumed if form is not None and not op.is_out and not leaves_over else ()
            try:
                results = self._kernels.attempt(op.name, kernel, drawn, is_clean, like, over=over)
            finally:
                self._refuse_changes(op, digests)
            cost = cost_ns(op.name, plain, results)
            if form is None or self._has_other_bytes(written):
                self._keep_new(op, results, inputs, cost)
                self._keeper.used(op.name, read)
            else:
                made = self._made(results, read, consumed)
                if made.storages:
                    closure = Closure(func, form.args, form.kwargs, drawn, present_setting(), tuple(made.places))
                    self._note(op, read, made, closure, cost)
                    self._kernels.learn(like, cost, [storage.nbytes() for storage in made.storages[len(consumed) :]])
                else:
                    self._keeper.used(op.name, read)
            leaves = [value for value in written if value.call is None and value.alive]
            self._recorder.wrote(op.name, ids(leaves if spared else inputs), ids(leaves), 0 if spared else cost)
        self._steps.ran()
        return results

    def _written(
        self, op: Operator, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Value]:
        if not op.writes and not op.communicates:
            return []
        if op.hidden is not None and not _is_true(func, op.hidden.only_if, args, kwargs):
            return []
        return self._values(op.written(args, kwargs))

    def _digests(self, values: Iterable[Value]) -> list[tuple[Value, int]]:
        """Digests of what an operator is to leave alone; what others may write to is compared elsewhere."""
        found = []
        for value in values:
            body = self._bodies[value]
            storage = body.storage()
            if storage is not None and body.aside is None:
                found.append((value, storages.digest_of(storage)))
        return found

    def _refuse_changes(self, op: Operator, digests: list[tuple[Value, int]]) -> None:
        """Raises:
        EagerError: if any of these contents is another one now.
        """
        for value, digest in digests:
            body = self._bodies.get(value)
            storage = None if body is None else body.storage()
            if storage is not None and storages.digest_of(storage) != digest:
                self.is_spoilt = True
                raise EagerError(
                    f"lowtide: the operator {op.name!r} has written to an argument that its schema does not mark as "
                    "written, so results that were computed from the old content cannot be computed again. Declare "
                    'what it writes, with mutates_args= in torch.library.custom_op or "Tensor(a!)" in the schema, or '
                    "run it outside lowtide.eager. The parameters are as far as this step got."
                )

    def value_of(self, tensor: Tensor) -> Value | None:
        """The present content of a tensor's storage; None where it has no bytes."""
        storage = tensor.untyped_storage()
        value = self._bodies.by_address.get(storage._cdata)
        if value is not None:
            return value
        return self._arrivals.meet(tensor, storage) if storage.nbytes() else None

    def _values(self, tensors: Iterable[Tensor]) -> list[Value]:
        """Of all storages that tensors read: each once, in order."""
        found: dict[int, Value] = {}
        for tensor in tensors:
            for part in _parts(tensor):
                value = self.value_of(part) if has_bytes(part) else None
                if value is not None:
                    found[value.id] = value
        return list(found.values())

    def _has_other_bytes(self, written: list[Value]) -> bool:
        """Whether a kernel gave an argument other bytes, for a result of another size, and did not write over it."""
        if written:
            self._kernels.catch_up()
        bodies = (self._bodies.get(value) for value in written)
        return any(body is None or not body.weak for body in bodies)

    def _before_writing(self, written: list[Value], *, consumes: bool) -> None:
        """Sees to it that nothing will need the content that goes, unless it can be made again."""
        for value in written:
            if not consumes:
                self._kernels.commit(value)
            if value.call is None:
                self._kernels.settle_dependents(value)
                self._steps.wrote(is_parameter=value.home and value.id in self._arrivals.parameters)

    def _made(self, results: Any, inputs: list[Value], consumed: list[Value]) -> _Made:
        made = _Made()
        for value in consumed:
            source = inputs.index(value)
            storage = self._bodies[value].storage()
            assert storage is not None
            made.consumes.append((source, len(made.places)))
            made.places.append(-1 - source)
            made.storages.append(storage)
        for position, storage, plain in self._new_storages(results):
            if not plain or self._bodies.offset_B(storage) is None or storages.objection(storage):
                self._recorder.leaf(self._arrivals.keep(storage).id, storage.nbytes())
                continue
            made.places.append(position)
            made.storages.append(storage)
        return made

    def _new_storages(self, results: Any) -> Iterator[tuple[int, torch.UntypedStorage, bool]]:
        """New storages among the results: the position of the first tensor of each, and whether that is plain."""
        seen: set[int] = set()
        for position, tensor in enumerate(tensors_in((results,))):
            for part in _parts(tensor):
                if not has_bytes(part):
                    continue
                storage = part.untyped_storage()
                if storage.nbytes() and storage._cdata not in self._bodies.by_address and storage._cdata not in seen:
                    seen.add(storage._cdata)
                    yield position, storage, is_plain(tensor)

    def _keep_new(self, op: Operator, results: Any, inputs: list[Value], cost_ns: int) -> None:
        made = [self._arrivals.keep(storage) for _, storage, _ in self._new_storages(results)]
        for value in made if op.communicates else ():
            self._bodies[value].fixed = True
        if self._steps.is_stepping:
            self._kernels.stepped.update(value.id for value in made)
        self._recorder.kept(op.name, ids(inputs), made_of(made), cost_ns)

    def _note(self, op: Operator, inputs: list[Value], made: _Made, closure: Closure, cost_ns: int) -> None:
        call = self._keeper.record(
            op.name,
            inputs,
            [storage.nbytes() for storage in made.storages],
            [self._bodies.offset_B(storage) or NOWHERE for storage in made.storages],
            cost_ns,
            temps_B=self._kernels.workspaces_B(sum(s.nbytes() for s in made.storages[len(made.consumes) :])),
            consumes=made.consumes,
            closure=closure,
        )
        for source, output in made.consumes:
            self._bodies.hand_over(inputs[source], call.outputs[output])
            self._keeper.died(inputs[source])
        fresh = len(made.consumes)
        for value, storage in zip(call.outputs[fresh:], made.storages[fresh:], strict=True):
            self._bodies.show(value, storage)
        self._steps.recorded(call)
        self._recorder.call(call.name, ids(call.inputs), made_of(call.outputs), call.consumes, call.cost_ns)


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The tensors whose storages a tensor reads: itself, and those that it is made of."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    if tensor.is_nested:
        sizes, strides = tensor._nested_tensor_size(), tensor._nested_tensor_strides()
        return tensor, sizes, strides, tensor._nested_tensor_storage_offsets()
    return (tensor,)


def has_bytes(tensor: Tensor) -> bool:
    """Whether a tensor is a look at bytes of its own storage; it may have more to it, as a quantized or nested one."""
    return tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor._is_zerotensor()


def is_plain(tensor: Tensor) -> bool:
    """Whether a size, strides and a type describe it, so that it can be made again; it may be conjugated or negated."""
    return has_bytes(tensor) and not tensor.is_quantized and not tensor.is_nested


def _twice_alike(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], op: Operator
) -> Callable[[], Any]:
    """The kernel of an operator with hidden writes: what it wrote is as it was when it runs a second time."""
    written = list(op.written(args, kwargs))
    with nothing_engaged():
        before = [tensor.clone() for tensor in written]
    runs = 0

    def kernel() -> Any:
        nonlocal runs
        if runs:
            for tensor, content in zip(written, before, strict=True):
                tensor.copy_(content)
        runs += 1
        return func(*args, **kwargs)

    return kernel


def _is_true(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the argument of this name is true; there is none without a name."""
    if not name:
        return True
    if name in kwargs:
        return bool(kwargs[name])
    names = [argument.name for argument in func._schema.arguments]  # type: ignore[attr-defined]
    position = names.index(name)
    return position < len(args) and bool(args[position])
