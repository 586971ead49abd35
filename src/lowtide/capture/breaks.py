"""Where and why Dynamo ended a graph in the middle of a model, in words for the person who wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import fx

from lowtide.capture.origin import is_users_file, place
from lowtide.ir.plan import GraphBreak

_UNTOLD = "step_unsupported"
_UNKNOWN = "something that torch cannot capture"
_BRANCH = "what runs next depends on the content of a tensor (a Python `if`, `while` or `assert` on it)"


def break_after(gm: fx.GraphModule) -> GraphBreak | None:
    """The break that ended a graph; None where the function it is of came to its end."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    return _at_end(gm, cause_of(reason.reason))


def break_instead_of(gm: fx.GraphModule, error: Exception) -> GraphBreak:
    """What is said of a graph that torch could not trace, so that its code runs without lowtide."""
    told = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    return _at_end(
        gm, f"the graph that ends here cannot be traced with its backward, and runs outside any plan ({told})"
    )


def _at_end(gm: fx.GraphModule, cause: str) -> GraphBreak:
    """A break at the line at which a graph ended."""
    stack = getattr(getattr(gm, "compile_subgraph_reason", None), "user_stack", None) or ()
    frames = [frame for frame in stack if is_users_file(frame.filename)]
    if not frames:
        return GraphBreak(cause)
    last = frames[-1]
    return GraphBreak(cause, place(last.filename, last.lineno or 0), (last.line or "").strip())


def cause_of(reason: str) -> str:
    """The gist of what Dynamo says, which runs to a page: its explanation, or else the first line."""
    if reason.startswith(("generic_jump", "Data-dependent branching")):
        return _BRANCH
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    if not lines:
        return _UNKNOWN
    found = re.search(r"Explanation: (.*)", reason)
    return (found.group(1).strip() if found else lines[0]).rstrip(".")


def all_breaks(ended: Iterable[GraphBreak], reasons: Iterable[str]) -> tuple[GraphBreak, ...]:
    """Every break of a model, once.

    Arguments:
        ended: breaks that ended a graph; of some of them torch tells the line and no reason.
        reasons: all that Dynamo gave. Those of breaks that ended no graph (inside a loop, say, torch abandons the whole
            function) come without a line.
    """
    known = list(dict.fromkeys(ended))
    told = {b.cause for b in known}
    rest = [cause for cause in dict.fromkeys(cause_of(r) for r in reasons) if cause not in told]
    for index, found in enumerate(known):
        if found.cause == _UNTOLD:
            cause = rest.pop(0) if rest else _UNKNOWN
            known[index] = GraphBreak(cause, found.source, found.text)
    return (*known, *(GraphBreak(cause) for cause in rest))
