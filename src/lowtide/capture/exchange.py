"""How a captured graph exchanges values with its caller, as `Interface`s: AOTAutograd's calling convention in data."""

from __future__ import annotations

from typing import Any

from torch import fx

from lowtide.capture.captured import Specialised
from lowtide.capture.joint import is_tensor
from lowtide.ir.call import Read
from lowtide.ir.interface import Interface, Result, Slot, Token


def interfaces_of(specialised: Specialised) -> tuple[Interface, ...]:
    """One interface per segment of the specialised graph, in order."""
    if specialised.whole is not None:
        return specialised.whole.interfaces
    captured, extraction = specialised.captured, specialised.extraction
    joint, slots = captured.joint, captured.slots

    def result(output: Any) -> Result:
        if isinstance(output, fx.Node):
            if is_tensor(output):
                value, views = extraction.base(output)
                return Read(value, views)
            number = output.meta.get("val")
            return None if number is None else specialised.symbols.number(number)
        return output  # type: ignore[no-any-return]

    def tensor_value(node: fx.Node) -> int | None:
        return extraction.value_of.get(node)

    random = [
        _state_of(specialised, {extraction.value_of[u] for u in (node, *node.users) if u in extraction.value_of})
        for node in slots.random
    ]
    tensors = [tensor_value(n) for n in slots.tensors]
    primals = tuple(tensor_value(p) for p in joint.primals)
    outputs = tuple(result(o) for o in joint.forward_outputs)
    constants = tuple(extraction.constants)
    if not joint.trains:
        return (Interface(primals, outputs, constants),)
    numbers = tuple(specialised.symbols.number(n.meta["val"]) for n in slots.numbers)
    handed = (*tensors, *random, *(None for _ in range(slots.spares)))
    given = tuple(Slot(value, argument) for argument, value in enumerate(handed, len(numbers)))
    forward = Interface(primals, (*outputs, *given, Token(), *numbers), constants)
    arguments = (*(None for _ in numbers), *handed, None, *(tensor_value(t) for t in joint.tangents))
    backward = Interface(arguments, tuple(result(o) for o in joint.backward_outputs), constants)
    return (forward, backward)


def _state_of(specialised: Specialised, outputs: set[int]) -> int | None:
    """The generator state of the random recipe that produces any of the given values."""
    for recipe in specialised.graph.recipes:
        if recipe.state is not None and outputs.intersection(recipe.outputs):
            return recipe.state
    return None
