"""What a model hears when it asks whether it is being compiled.

Some models compute something else then, equal only up to rounding: a scan in place of a loop, another kernel. A budget
must not change results, so a model that lowtide captures hears "no", and what is captured is what runs without lowtide.
Others ask in order to leave out what cannot be captured, such as a look at the data; at such a place, once it is known,
they hear "yes". Code of torch itself always hears the truth: it asks for the sake of the capture.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

Place = tuple[tuple[str, str, int], ...]  # file, function and line of the code that asks, and of its callers
_TORCH = os.path.dirname(torch.__file__) + os.sep
_DEPTH = 4  # frames that tell one place from another: libraries ask through functions of their own
_HONEST: set[Place] = set()  # where a "no" led to code that cannot be captured
_TOLD: list[Place] = []  # places of that kind that asked since somebody looked
_THREAD = threading.local()  # `asked`: places that asked, while a capture of ours runs on this thread; `denies`


@contextlib.contextmanager
def queries_denied() -> Iterator[list[Place]]:
    """Inside, models on this thread hear from Dynamo that they are not being compiled; lists the places, in order."""
    with _listening(denies=True) as asked:
        yield asked


@contextlib.contextmanager
def queries_noted() -> Iterator[list[Place]]:
    """Inside, models hear the truth; lists the places where it is not known that they have to."""
    with _listening(denies=False) as asked:
        yield asked


@contextlib.contextmanager
def _listening(*, denies: bool) -> Iterator[list[Place]]:
    _install()
    before = getattr(_THREAD, "asked", None), getattr(_THREAD, "denies", False)
    asked: list[Place] = []
    _THREAD.asked, _THREAD.denies = asked, denies
    try:
        yield asked
    finally:
        _THREAD.asked, _THREAD.denies = before


def place_behind(failure: BaseException, denied: Sequence[Place]) -> Place | None:
    """The place whose "no" probably led to code that cannot be captured: the last one that is on the failure's stack.

    Arguments:
        failure: Dynamo's, with the stack of the code that it traced.
        denied: places that heard "no" until then.
    """
    stack = {(f.filename, f.name) for f in getattr(failure, "real_stack", None) or ()}
    for place in reversed(denied):
        if place not in _HONEST and any(frame[:2] in stack for frame in place):
            return place
    return None


def places_told() -> list[Place]:
    """Places that heard "yes" because what they do otherwise cannot be captured, since the last look."""
    found = list(dict.fromkeys(_TOLD))
    _TOLD.clear()
    return found


def be_honest_at(place: Place, honest: bool = True) -> None:
    """From now on the place hears the truth, or no longer."""
    (_HONEST.add if honest else _HONEST.discard)(place)


def _unanswered() -> frozenset[Callable[[], bool]]:
    """Whether a device's stream is being captured: asked of devices that this build or this machine lacks.

    There these raise, and so does Dynamo, which takes them for operators, or refuses them.
    """
    found: set[Callable[[], bool]] = set()
    for module in (torch.cuda, torch.xpu):
        if query := getattr(module, "is_current_stream_capturing", None):
            try:
                query()
            except RuntimeError:
                found.add(query)
    return frozenset(found)


@functools.cache
def _install() -> None:
    """Puts a function in the place of Dynamo's answers, for good; outside our captures it answers as before."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables import torch as answers

    plain = answers.tracing_state_functions
    known = answers.TorchInGraphFunctionVariable._get_handlers()
    unanswered = _unanswered()

    def tracing_state_functions() -> dict[Callable[[], Any], bool | None]:
        told, asked, asking = plain(), getattr(_THREAD, "asked", None), sys._getframe(1).f_locals
        query: Any = getattr(asking.get("self"), "value", None)
        if query in unanswered:
            return {query: False}
        place = () if asked is None or not told.get(query) else _place(asking.get("tx"))
        if asked is None or not place or place[0][0].startswith(_TORCH):
            return told
        if place in _HONEST:
            _TOLD.append(place)
            return told
        asked.append(place)
        return {**told, query: False} if _THREAD.denies else told

    answers.tracing_state_functions = tracing_state_functions  # type: ignore[assignment]
    rules = trace_rules.get_torch_obj_rule_map()
    for query in unanswered:
        rules[query] = answers.TorchInGraphFunctionVariable
        known[query] = known[torch.compiler.is_compiling]


def _place(tracer: Any) -> Place:
    """The frames that Dynamo is tracing, innermost first."""
    frames: list[tuple[str, str, int]] = []
    while tracer is not None and len(frames) < _DEPTH:
        frames.append((tracer.f_code.co_filename, tracer.f_code.co_name, tracer.lineno))
        tracer = getattr(tracer, "parent", None)
    return tuple(frames)
