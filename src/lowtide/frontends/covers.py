"""What the budget counts, in words, and what it could not know."""

from __future__ import annotations

from lowtide.ir.plan import Covers


def covers_of(trains: bool, has_optimizer: bool, graphs: int) -> Covers:
    """The coverage of a plan.

    Arguments:
        trains: whether there is a backward.
        has_optimizer: whether the caller named the optimizer.
        graphs: how many captured graphs the plan spans.
    """
    inside = ["parameters", "buffers", "inputs", "values of the captured graph", "operator workspaces"]
    if trains:
        inside.append("gradients of one backward pass")
    outside = ["the optimizer's temporaries during its step"]
    outside.append("optimizer state" if has_optimizer else "optimizer state (no optimizer was given)")
    if trains:
        outside.append("gradients accumulated by earlier backward passes")
    outside.append("code outside the model, such as a loss computed by the caller")
    if graphs > 1:
        outside.append(f"code between the {graphs} captured graphs")
    return Covers(tuple(inside), tuple(outside))
