"""Turning a module's call into a compiled one that never leaves the plan unnoticed."""

from __future__ import annotations

import itertools
import logging
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.capture.origin import place
from lowtide.device.compile_queries import (
    Place,
    be_honest_at,
    place_behind,
    places_told,
    queries_denied,
    queries_noted,
)
from lowtide.device.known_branches import Fact, known_branches, signature_of
from lowtide.device.releases import missing, warn_if_untested
from lowtide.device.said_once import messages_said_once
from lowtide.device.semiprivate import (
    backend_failure,
    capture_failures,
    captured_as_eager,
    forget_graph_breaks,
    graph_breaks,
    recompile_limit_error,
    refused_graph_breaks,
)
from lowtide.errors import CaptureError, LowtideError, RecompileLimit

_LOG = logging.getLogger("lowtide")
_SERIAL = itertools.count(1)
_VARIANTS = 15  # beside the newest
_BOOKKEEPING = ("transformers/utils/output_capturing.py",)  # there, "yes" leaves out what changes no result


def compiled_call(
    module: torch.nn.Module, backend: Callable[..., Any] | str, dynamic: bool | None
) -> Callable[..., Any]:
    """The module's call, hooks included, compiled by a Dynamo backend: as one graph where that is possible.

    Dynamo skips frames of `torch.nn` itself, so a bare `nn.Sequential` would never be captured; a function of ours
    around the call is not skipped. It gets a code object and a name of its own, because Dynamo counts recompiles,
    and remembers which sizes vary, per code object and per name.
    """
    if lacking := missing():
        raise CaptureError(
            f"torch {torch.__version__} lacks {', '.join(lacking)}, which lowtide needs to capture a model"
        )
    warn_if_untested()
    call: Callable[..., Any] = module._call_impl

    def step(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    def compiled() -> Callable[..., Any]:
        name = f"lowtide_step_{next(_SERIAL)}"
        code = step.__code__.replace(co_name=name)
        own = types.FunctionType(code, step.__globals__, name, None, step.__closure__)
        return torch.compile(own, backend=backend, dynamic=dynamic)

    return WholeCall(compiled)


@dataclass(eq=False)
class Variant:
    """A compiled call, and what has to hold of the arguments for what it captured.

    Arguments:
        call: compiled, perhaps for several shapes.
        facts: of all its captures.
    """

    call: Callable[..., Any]
    facts: list[Fact] = field(default_factory=list)

    def serves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether what was captured for arguments of these shapes, if anything, was captured under the same facts."""
        if not self.facts:
            return True
        here = signature_of(args, kwargs)
        return all(f.holds(args, kwargs) for f in self.facts if f.signature is None or f.signature == here)


class WholeCall:
    """A compiled call that captures what eager runs, in one graph; in several only where one is impossible.

    Invariant: nothing of the model has run when an attempt at one graph fails: Dynamo traces all of it first.

    Arguments:
        compiled: makes the call; Dynamo gives up what once failed, so that every attempt needs a new one.
    """

    def __init__(self, compiled: Callable[[], Callable[..., Any]]) -> None:
        self._compiled = compiled
        self._variants = [Variant(compiled())]
        self._is_whole = True
        self._has_said_so = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        variant = next((v for v in self._variants if v.serves(args, kwargs)), None)
        if variant is None:
            variant = Variant(self._compiled())
            self._variants = [*self._variants[-_VARIANTS:], variant]
        suspect: Place | None = None
        failed_at = ""
        while self._is_whole:
            breaks = graph_breaks()
            try:
                with queries_denied() as denied, known_branches(args, kwargs) as facts, refused_graph_breaks():
                    result = variant.call(*args, **kwargs)
            except capture_failures() as failure:
                forget_graph_breaks(breaks)
                if suspect is not None and _where(failure) == failed_at:
                    be_honest_at(suspect, False)  # it was not what it heard
                    suspect = None
                else:
                    suspect, failed_at = place_behind(failure, denied), _where(failure)
                if suspect is not None:
                    be_honest_at(suspect)
                self._is_whole = suspect is not None
                variant.call, variant.facts = self._compiled(), []
                places_told()  # of the attempt that failed
            else:
                variant.facts += facts
                self._say(())
                return result
        with queries_noted() as told, known_branches():
            result = variant.call(*args, **kwargs)
        self._say(told)
        return result

    def _say(self, told: Sequence[Place]) -> None:
        """Says once at which places the model took a way that it does not take without lowtide."""
        places = [p for p in (*told, *places_told()) if not any(f.endswith(_BOOKKEEPING) for f, *_ in p)]
        if places and not self._has_said_so:
            self._has_said_so = True
            _LOG.warning(
                "the model asks whether it is being compiled at %s, and what it does if not cannot be captured as one "
                "graph: it was told yes. If it computes something else then, results may differ from plain PyTorch by "
                "rounding. Mend the graph break (TORCH_LOGS=graph_breaks shows it).",
                ", ".join(dict.fromkeys(place(file, line) for p in places for file, _, line in p[-2:-1] or p)),
            )


def _where(failure: BaseException) -> str:
    """The place in the user's code where a capture failed, as a key."""
    return "|".join(f"{f.filename}:{f.lineno}" for f in getattr(failure, "real_stack", None) or ())


def run_loudly(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a compiled function; what Dynamo would hide or wrap reaches the user as lowtide's own error.

    Raises:
        RecompileLimit: where Dynamo would go on in eager, outside the budget.
        LowtideError: raised while compiling, without Dynamo's wrapping.
    """
    try:
        with captured_as_eager(), messages_said_once():
            return call(*args, **kwargs)
    except recompile_limit_error() as error:
        raise RecompileLimit(
            "torch reached its recompile limit and would go on in eager, outside the budget. Pad inputs to fewer "
            "shapes, pass dynamic=True, or raise torch._dynamo.config.recompile_limit."
        ) from error
    except backend_failure() as error:
        inner = getattr(error, "inner_exception", None)
        if isinstance(inner, LowtideError):
            raise inner from error
        raise
