"""Where and why Dynamo ended a graph in the middle of a model, in words for the person who wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import fx

from lowtide.ir.plan import GraphBreak

_BRANCH = "what runs next depends on the content of a tensor (a Python `if`, `while` or `assert` on it)"


def break_after(gm: fx.GraphModule) -> GraphBreak | None:
    """The break that ended a graph; None where the function it is of came to its end."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    frames = list(reason.user_stack)
    if not frames:
        return GraphBreak(cause_of(reason.reason))
    return GraphBreak(cause_of(reason.reason), f"{frames[-1].filename}:{frames[-1].lineno}", frames[-1].line or "")


def cause_of(reason: str) -> str:
    """The gist of what Dynamo says, which runs to a page: the first sentence, and the explanation."""
    if reason.startswith("generic_jump"):
        return _BRANCH
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    if not lines:
        return "torch gives no reason"
    found = re.search(r"Explanation: (.*)", reason)
    return f"{lines[0].rstrip('.')}: {found.group(1).strip()}" if found else lines[0]


def without_line(reasons: Iterable[str], known: Iterable[GraphBreak]) -> tuple[GraphBreak, ...]:
    """Breaks that ended no graph (inside a loop, say, torch gives up the whole function), so that no line is known.

    Arguments:
        reasons: all that Dynamo gave.
        known: breaks that ended a graph.
    """
    told = {b.cause for b in known}
    causes = dict.fromkeys(cause_of(r) for r in reasons)
    return tuple(GraphBreak(cause) for cause in causes if cause not in told)
