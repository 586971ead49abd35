"""What every family of implementations is: a frozen value that adds implementations to a graph.

A family is read without torch; its kernels import it when they first run.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lowtide.ir.graph import Graph, Recipe
from lowtide.ir.numerics import Numerics
from lowtide.ops.builder import GraphBuilder

SAVED = "saved values"
IN_PLACE = "in-place"
ALGORITHMS = "algorithms"
LOSS = "loss"
FUSION = "fusion"
KINDS = (IN_PLACE, SAVED, ALGORITHMS, LOSS, FUSION)
"""What can be switched off together, in the order of the ablation."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """An operator of ours, and what it costs where it cannot be measured.

    Arguments:
        run: takes tensors and constants as the recipe passes them; returns a tensor or a tuple of tensors. It runs
            without gradients, advances no generator, and leaves its arguments alone unless the recipe consumes them.
        flops: arithmetic of one run; None where the time is that of the bytes moved.
        traffic_B: bytes moved; None for what is read and written once.
        workspace_B: bytes that it allocates besides its outputs, at the most.
        by_size: whether its bits hang on sizes, as those of a product of parts of matrices do: where it claims to be
            exact it is tried at every size anew.
    """

    run: Callable[..., Any]
    flops: Callable[[Graph, Recipe], float] | None = None
    traffic_B: Callable[[Graph, Recipe], int] | None = None
    workspace_B: Callable[[Graph, Recipe], int] | None = None
    by_size: bool = False


class AbstractFamily(abc.ABC):
    """Implementations of some operators that differ in what they read, save and allocate."""

    name: ClassVar[str]
    kind: ClassVar[str]
    kernels: ClassVar[Mapping[str, Kernel]] = {}
    """Operators of ours by name without the namespace: `"pack_positive"` is `lowtide.pack_positive` in a recipe."""

    @abc.abstractmethod
    def add(self, builder: GraphBuilder, numerics: Numerics) -> None:
        """Adds every implementation that this family knows and the level admits. O(graph).

        Arguments:
            builder: to which earlier families may have added.
            numerics: how far results may be from the program's.
        """
