"""What an operator that has run costs, from the sizes that torch says its tensors have.

Units: `_ns` nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from lowtide.eager_engine.costs import Shape, formula_ns
from lowtide.eager_engine.operators import tensors_in


def cost_ns(name: str, arguments: Iterable[Tensor], results: Any) -> int:
    """The modelled cost of an operator; the same in every run, so that what fits fits again.

    Arguments:
        name: of its overload.
        arguments: its tensors.
        results: whatever it returned.
    """
    return formula_ns(name, _shapes(arguments), _shapes(tensors_in((results,))))


def _shapes(tensors: Iterable[Tensor]) -> tuple[Shape, ...]:
    return tuple((tuple(tensor.shape), tensor.element_size()) for tensor in tensors if not tensor.is_nested)
