"""Which gradients of a captured backward depend on which of the gradients that it is given.

Where an output of the model takes no part in the loss, eager leaves the parameters behind it without a gradient, while
a captured backward is given zeros and would give zeros: weight decay and momentum see the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from lowtide.capture.joint import Joint


@dataclass(frozen=True)
class Reach:
    """The dependence of the backward's results on its tangents.

    Arguments:
        positions: per tangent, its place among the gradients that autograd gives the captured function.
        masks: per result of the backward, the tangents that it depends on, as bits; 0 for none.
    """

    positions: tuple[int, ...]
    masks: tuple[int, ...]

    @property
    def is_partial(self) -> bool:
        """Whether some result does without some tangent, so that it matters which ones really come."""
        whole = (1 << len(self.positions)) - 1
        return any(mask and mask != whole for mask in self.masks)

    def unreached(self, came: Sequence[bool]) -> list[int]:
        """Results to which no gradient flows.

        Arguments:
            came: per gradient that autograd gives the captured function, whether there is one.
        """
        given = sum(1 << i for i, position in enumerate(self.positions) if came[position])
        return [i for i, mask in enumerate(self.masks) if mask and not mask & given]


def reach_of(joint: Joint, positions: Sequence[int] | None) -> Reach | None:
    """The reach of a joint graph; None where it is not known which gradient becomes which tangent."""
    if positions is None or len(positions) != len(joint.tangents):
        return None
    bits: dict[fx.Node, int] = {t: 1 << i for i, t in enumerate(joint.tangents)}
    for node in joint.module.graph.nodes:
        if node not in bits:
            bits[node] = 0
            for source in node.all_input_nodes:
                bits[node] |= bits[source]
    return Reach(tuple(positions), tuple(bits[g] if isinstance(g, fx.Node) else 0 for g in joint.backward_outputs))
