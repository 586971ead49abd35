"""Lists in words what a budget counts, and what is outside it."""

from __future__ import annotations

from lowtide.ir.plan import Covers
from lowtide.profile.optimizer import OptimizerNeeds

NO_OPTIMIZER = "optimizer state and temporaries (no optimizer was given)"


def covers_of(trains: bool, needs: OptimizerNeeds | None, graphs: int, scope: str, *, updates: bool = False) -> Covers:
    """The coverage of a plan.

    Arguments:
        trains: whether there is a backward.
        needs: what the optimizer takes, where it counts.
        graphs: how many captured graphs the plan spans.
        updates: whether the optimizer's updates are in the plan.
        scope: what is held inside an arena: "step", "process", or "none" where the budget is accounted.
    """
    enforced = scope != "none"
    inside = ["parameters", "buffers", "inputs", "values of the captured graph", "operator workspaces"]
    outside: list[str] = []
    if enforced:
        inside.append("tiny tensors, and the holes between all of them")
        if not updates:
            inside.append("code between forward and backward, such as a loss computed by the caller")
        if scope == "process":
            inside.append("whatever else the process allocates on torch's allocator of the device")
        else:
            outside.append("what the process allocates outside forward, backward and the optimizer's step")
    else:
        if not updates:
            outside.append("code outside the model, such as a loss computed by the caller")
        if graphs > 1:
            outside.append(f"code between the {graphs} captured graphs")
    if trains:
        inside.append("gradients of one backward pass")
        if updates:
            inside.append("optimizer state, and the optimizer's update of every parameter")
        if enforced:
            inside.append("gradients and outputs that earlier steps left")
        else:
            outside.append("gradients accumulated by earlier backward passes")
        if updates:
            pass
        elif needs is None:
            outside.append(NO_OPTIMIZER)
        elif needs.method == "unknown":
            outside.append(f"optimizer state and temporaries ({needs.note})")
        else:
            inside.append("optimizer state" + (" and the temporaries of its step" if enforced else ""))
            outside += [] if enforced else ["the optimizer's temporaries during its step"]
    return Covers(tuple(inside), tuple(outside))
