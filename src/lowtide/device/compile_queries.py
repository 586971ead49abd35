"""The answers that a model gets when it asks whether it is being compiled.

Some models compute something else then, equal only up to rounding: a scan in place of a loop, another kernel. A budget
must not change results, so a model that lowtide captures hears "no", and what is captured is what runs without lowtide.
Where the code that follows a "no" cannot be captured as one graph, a caller that accepts other roundings may have the
place told "yes"; that is written down, and the capture's record has it. Code of torch itself hears the truth: it asks
for the sake of the capture, except where what it then computes is known to round otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.device.looked_through import note_what_is_looked_through

Place = tuple[tuple[str, str, int], ...]  # file, function and line of the code that asks, and of its callers
_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_DEPTH = 4  # frames that tell one place from another: libraries ask through functions of their own
_THREAD = threading.local()  # `answers`: of the capture of ours that runs on this thread
# Places that hear "yes" because results do not depend on the answer: this one keeps a list in a global instead of a
# context variable, which Dynamo cannot trace.
_INDIFFERENT = (("transformers/utils/output_capturing.py", "set"),)


@dataclass(eq=False)
class Answers:
    """What models heard during a capture, in order.

    Arguments:
        truth_at: places that are to hear the truth.
        denied: places that heard "no".
        told: places of `truth_at` that asked, and heard "yes".
        compilations: names and places of code that `torch.compile` has compiled before, through which Dynamo looks.
        draws: names and places of cached functions that draw random numbers.
        results: of cached functions, by name and place: fake tensors, each with its version when it was returned.
    """

    truth_at: Collection[Place] = ()
    denied: list[Place] = field(default_factory=list)
    told: list[Place] = field(default_factory=list)
    compilations: dict[str, Place] = field(default_factory=dict)
    draws: dict[str, Place] = field(default_factory=dict)
    results: list[tuple[str, Place, torch.Tensor, int]] = field(default_factory=list)

    def to(self, place: Place) -> bool:
        """The answer to a place, which is noted."""
        if any(file.endswith(end) and name == function for file, name, _ in place for end, function in _INDIFFERENT):
            return True
        known = place in self.truth_at
        (self.told if known else self.denied).append(place)
        return known

    def compiled(self, name: str, tracer: Any) -> None:
        """Notes that Dynamo looked through code which `torch.compile` has compiled.

        Arguments:
            tracer: what traces it; None where that is not known.
        """
        self.compilations.setdefault(name, _place(tracer))

    def cached(self, name: str, tracer: Any, draws: bool, results: list[tuple[torch.Tensor, int]]) -> None:
        """Notes that Dynamo looked through a function under a cache.

        Arguments:
            draws: whether it draws random numbers.
            results: its fake results, each with its version.
        """
        place = _place(tracer)
        if draws:
            self.draws.setdefault(name, place)
        self.results += [(name, place, tensor, version) for tensor, version in results]

    @property
    def changed(self) -> dict[str, Place]:
        """Names and places of cached functions whose results are changed in place."""
        return {name: place for name, place, tensor, version in self.results if tensor._version != version}

    def place_behind(self, failure: BaseException) -> Place | None:
        """The place whose "no" probably led to code that cannot be captured: the last one on the failure's stack.

        Arguments:
            failure: Dynamo's, with the stack of the code that it traced.
        """
        stack = {(f.filename, f.name) for f in getattr(failure, "real_stack", None) or ()}
        return next((p for p in reversed(self.denied) if any(frame[:2] in stack for frame in p)), None)


@contextlib.contextmanager
def queries_answered(truth_at: Collection[Place] = ()) -> Iterator[Answers]:
    """Inside, models that Dynamo captures on this thread hear that they are not being compiled.

    Arguments:
        truth_at: places that hear the truth all the same.

    Returns: what they heard, complete at the end.
    """
    _install()
    before = getattr(_THREAD, "answers", None)
    _THREAD.answers = answers = Answers(truth_at)
    try:
        yield answers
    finally:
        _THREAD.answers = before


def answers_so_far() -> Answers | None:
    """What was heard in the capture of ours that runs on this thread; None where none does, and all hear the truth."""
    return getattr(_THREAD, "answers", None)


def line_of(place: Place) -> tuple[str, int]:
    """File and line of the code that asks; of its caller where a library asks through a function of its own."""
    asking = [
        (f, line) for f, name, line in place if "compiling" not in name and "tracing" not in name and f[:1] != "<"
    ]
    return asking[0] if asking else (place[0][0], place[0][2])


def _unanswered() -> frozenset[Callable[[], bool]]:
    """Queries whether a device's stream is being captured, of devices that this build or this machine lacks.

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
    from torch._dynamo.variables import torch as variables

    plain = variables.tracing_state_functions
    known = variables.TorchInGraphFunctionVariable._get_handlers()
    unanswered = _unanswered()

    def tracing_state_functions() -> dict[Callable[[], Any], bool | None]:
        told, answers, asking = plain(), answers_so_far(), sys._getframe(1).f_locals
        query: Any = getattr(asking.get("self"), "value", None)
        if query in unanswered:
            return {query: False}
        place = () if answers is None or not told.get(query) else _place(asking.get("tx"))
        if answers is None or not place or place[0][0].startswith(_TORCH):
            return told
        return {**told, query: answers.to(place)}

    variables.tracing_state_functions = tracing_state_functions  # type: ignore[assignment]
    rules = trace_rules.get_torch_obj_rule_map()
    for query in unanswered:
        rules[query] = variables.TorchInGraphFunctionVariable
        known[query] = known[torch.compiler.is_compiling]
    _let_mark()
    note_what_is_looked_through(answers_so_far)


def _let_mark() -> None:
    """Lets a model that was told "no" mark tensors for a compiler, which Dynamo forbids: it changes no result."""
    from torch._dynamo import symbolic_convert, trace_rules
    from torch._dynamo.variables import ConstantVariable
    from torch._dynamo.variables import torch as variables

    mark, plain = torch._dynamo.mark_static_address, trace_rules.is_forbidden

    def is_forbidden(obj: Any) -> bool:
        return plain(obj) and (obj is not mark or answers_so_far() is None)

    symbolic_convert.is_forbidden = is_forbidden  # type: ignore[attr-defined]
    trace_rules.get_torch_obj_rule_map()[mark] = variables.TorchInGraphFunctionVariable
    variables.TorchInGraphFunctionVariable._get_handlers()[mark] = lambda *_args, **_kwargs: ConstantVariable.create(
        None
    )


def _place(tracer: Any) -> Place:
    """The frames that Dynamo is tracing, innermost first, without lowtide's own: its name differs by attempt."""
    frames: list[tuple[str, str, int]] = []
    while tracer is not None and len(frames) < _DEPTH and not tracer.f_code.co_filename.startswith(_OURS):
        frames.append((tracer.f_code.co_filename, tracer.f_code.co_name, tracer.lineno))
        tracer = getattr(tracer, "parent", None)
    return tuple(frames)
