"""A forward that computes nothing: right shapes, zero contents. It lets a caller's code run on to the next graph.

New contents of mutated inputs are the old ones, so the caller's write-back changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lowtide.device.address_space import untouched
from lowtide.device.calls import apply_view
from lowtide.ir.call import Read
from lowtide.ir.graph import Graph
from lowtide.ir.interface import Interface, Slot, Token

_LARGE_B = 16 * 2**20  # zeros of that size are not written: the logits of a language model take gigabytes


def dry_results(
    graph: Graph,
    interface: Interface,
    given: Sequence[Any],
    held: Sequence[Any],
    unchanged: Mapping[int, int],
    token: torch.Tensor,
) -> tuple[Any, ...]:
    """What the first segment would return, in shape.

    Arguments:
        given: the arguments of the call.
        held: arguments of operators without a text form.
        unchanged: per result index, the argument whose content it would replace.
        token: the plan token to hand on.
    """
    empty = torch.empty(0)
    bases: dict[int, torch.Tensor] = {
        value: given[i] for i, value in enumerate(interface.arguments) if value is not None and i < len(given)
    }
    results: list[Any] = []
    for index, result in enumerate(interface.results):
        if isinstance(result, Slot):
            results.append(empty)
        elif isinstance(result, Token):
            results.append(token)
        elif index in unchanged:
            results.append(given[unchanged[index]].clone())
        elif isinstance(result, Read):
            results.append(_zeros(graph, result, bases, held))
        else:
            results.append(result)
    return tuple(results)


def _zeros(graph: Graph, read: Read, bases: dict[int, torch.Tensor], held: Sequence[Any]) -> torch.Tensor:
    if read.value not in bases:
        geometry = graph.values[read.value].geometry
        assert geometry is not None, "capture gives every value a geometry"
        dtype = getattr(torch, geometry.dtype)
        if geometry.device == "cpu" and geometry.extent_B >= _LARGE_B:
            pages = untouched(-(-geometry.extent_B // 16) * 16)  # whole elements of every dtype
            bases[read.value] = pages.view(dtype).as_strided(geometry.shape, geometry.stride, geometry.offset)
        else:
            tensor = torch.empty_strided(geometry.shape, geometry.stride, dtype=dtype, device=geometry.device)
            bases[read.value] = tensor.zero_()
    tensor = bases[read.value]
    for view in read.views:
        tensor = apply_view(view, tensor, held)
    return tensor
