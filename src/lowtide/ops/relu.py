"""ReLU's gradient from its input: a unit let pass what is above zero, and its input says so as well as its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from lowtide.ir.call import Ref
from lowtide.ir.graph import Option
from lowtide.ir.numerics import Numerics
from lowtide.ops.base import SAVED, AbstractFamily
from lowtide.ops.draft import Draft

_RELU = "aten.relu.default"
_BACKWARD = "aten.threshold_backward.default"


@final
@dataclass(frozen=True)
class Relu(AbstractFamily):
    """The backward reads whichever is there, input or output. Exact: only comparisons with zero."""

    name: ClassVar[str] = "relu"
    kind: ClassVar[str] = SAVED

    def add(self, draft: Draft, numerics: Numerics) -> None:  # noqa: ARG002  # exact at any level
        for backward in list(draft.calls(_BACKWARD)):
            gradient, result = backward.reads
            forward = draft.made_by(result.value)
            if forward is None or forward.op != _RELU or result.views or backward.args != (Ref(0), Ref(1), 0):
                continue
            reads = (gradient, forward.reads[0])
            other = draft.recipe(backward, _BACKWARD, outputs=backward.outputs, reads=reads, args=backward.args)
            draft.group(self.kind, f"{self.name} {backward.id}", [backward.id], [Option("from input", (other,))])
