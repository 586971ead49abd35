"""What surrounds the capture of a graph, so that it can be captured once more when all of that is over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lowtide.device.autocasting import Autocasting
from lowtide.device.dispatch_modes import no_function_modes, no_modes
from lowtide.device.fake_kernels import geometries_learnt


@dataclass(frozen=True, eq=False)
class Ambient:
    """The state of this thread in which Dynamo hands over a graph.

    Arguments:
        examples: what stands for the graph's arguments.
        fake_mode: of these.
        autocast: what autocast did.
    """

    examples: tuple[Any, ...]
    fake_mode: Any
    autocast: Autocasting

    @classmethod
    def now(cls, graph: fx.GraphModule) -> Ambient:
        """That of a graph which is being handed over."""
        examples = tuple(p.meta["example_value"] for p in graph.graph.find_nodes(op="placeholder"))
        # Dynamo's own: that which it gives to a backend would copy the examples without the Python numbers in them.
        fake_mode = next((e.fake_mode for e in examples if hasattr(e, "fake_mode")), None)
        return cls(
            examples,
            fake_mode or torch._guards.TracingContext.get().fake_mode,
            Autocasting.now(),
        )

    @contextlib.contextmanager
    def restored(self) -> Iterator[tuple[Any, ...]]:
        """Inside, all is as it was; returns what stands for the graph's arguments."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(no_modes())
            stack.enter_context(no_function_modes())
            stack.enter_context(geometries_learnt())
            stack.enter_context(self.autocast.restored())
            stack.enter_context(torch._guards.tracing(torch._guards.TracingContext(self.fake_mode)))
            stack.enter_context(_numbers_known(self.fake_mode.shape_env))
            yield self.examples


@contextlib.contextmanager
def _numbers_known(shape_env: Any) -> Iterator[None]:
    """Inside, torch knows which Python numbers of a graph it has made constants.

    It forgets that when Dynamo is done. A capture of the same graph would ask Dynamo to begin anew, which is not there.
    """
    from torch._dynamo.symbolic_convert import TensorifyState

    known, before = TensorifyState.force_specializations, set(TensorifyState.force_specializations)
    current = hasattr(shape_env, "backed_var_to_val")
    values = shape_env.backed_var_to_val if current else getattr(shape_env, "var_to_val", {})
    known.update(map(str, values))
    try:
        yield
    finally:
        known.clear()
        known.update(before)
