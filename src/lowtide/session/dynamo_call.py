"""Turning a module's call into a compiled one that never leaves the plan unnoticed."""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from lowtide.device.capture_errors import backend_failure, capture_failures, recompile_limit_error
from lowtide.device.compile_queries import Answers, Place, queries_answered
from lowtide.device.compiled_code import CompiledFunction
from lowtide.device.dynamo_settings import captured_as_compiled, captured_as_eager
from lowtide.device.fake_kernels import geometries_learnt
from lowtide.device.graph_breaks import forget_graph_breaks, graph_breaks, refused_graph_breaks
from lowtide.device.known_branches import Fact, known_branches, signature_of
from lowtide.device.layouts import real_layouts
from lowtide.device.locks import locks_entered
from lowtide.device.modules import plain_call
from lowtide.device.process_groups import model_inside
from lowtide.device.releases import missing, warn_if_untested
from lowtide.device.rewritten_calls import calls_kept
from lowtide.device.said_once import messages_said_once
from lowtide.device.surroundings import obstruction
from lowtide.errors import ArgumentError, CaptureError, LowtideError, RecompileLimit
from lowtide.ir.compilers import EAGER, INDUCTOR
from lowtide.progress import told
from lowtide.session.hook_installation import install_output_hooks

_SERIAL = itertools.count(1)
_VARIANTS = 15  # and the newest


def compiled_call(
    module: torch.nn.Module,
    backend: Callable[..., Any] | str,
    dynamic: bool | None,
    *,
    exact: bool = True,
    compiler: str = EAGER,
) -> WholeCall:
    """The module's call, hooks included, compiled by a Dynamo backend: as one graph where that is possible.

    Dynamo skips frames of `torch.nn` itself, so a bare `nn.Sequential` would never be captured; a function of ours
    around the call is not skipped. It gets a code object and a name of its own, because Dynamo counts recompiles,
    and remembers which sizes vary, per code object and per name.

    Arguments:
        module: one in DistributedDataParallel is captured without it, whose Python would break the graph.
        exact: whether what is captured has to be what runs without lowtide; else the model may be told that it is being
            compiled where that makes one graph of it.
        compiler: whose kernels run. With Inductor's, what is captured is what `torch.compile` captures, each shape by
            itself.

    Raises:
        CaptureError: if the installed torch lacks what a capture needs.
        ArgumentError: if Inductor is to compile for sizes that vary.
    """
    if compiler == INDUCTOR:
        if dynamic:
            raise ArgumentError(
                'dynamic=True with compiler="inductor": its kernels are planned for fixed sizes. Leave dynamic= out, '
                "and each shape is compiled by itself."
            )
        dynamic = False
    if lacking := missing(compiled=compiler == INDUCTOR):
        raise CaptureError(
            f"torch {torch.__version__} lacks {', '.join(lacking)}, which lowtide needs to capture a model"
        )
    warn_if_untested()
    module = model_inside(module)
    call: Callable[..., Any] = plain_call(module)

    def step(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    def compiled() -> CompiledFunction:
        name = f"lowtide_step_{next(_SERIAL)}"
        code = step.__code__.replace(co_name=name)
        own = types.FunctionType(code, step.__globals__, name, None, step.__closure__)
        return CompiledFunction(own, backend, dynamic)

    return CompiledCall(compiled, module) if compiler == INDUCTOR else WholeCall(compiled, module, exact=exact)


@dataclass(eq=False)
class Variant:
    """A compiled call, and what has to hold of the arguments for what it captured.

    Arguments:
        call: compiled, perhaps for several shapes.
        facts: of all its captures.
    """

    call: CompiledFunction
    facts: list[Fact] = field(default_factory=list)

    def begin_anew(self) -> None:
        """Drops what was captured."""
        self.call.begin_anew()
        self.facts.clear()

    def serves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether what was captured for arguments of these shapes, if anything, was captured under the same facts."""
        if not self.facts:
            return True
        here = signature_of(args, kwargs)
        return all(f.holds(args, kwargs) for f in self.facts if f.signature is None or f.signature == here)


class WholeCall:
    """A compiled call that captures what eager runs, in one graph; in several only where one is impossible.

    Models hear that they are not being compiled. Where other roundings are admitted, a place whose "no" prevents
    one graph hears the truth in the next attempt.

    Invariant: nothing of the model has run when an attempt at one graph fails: Dynamo traces all of it first.

    Arguments:
        compiled: makes the call; Dynamo abandons what once failed, so that every attempt begins anew.
        module: that is called.
        exact: whether results have to be those of plain PyTorch.
    """

    def __init__(self, compiled: Callable[[], CompiledFunction], module: torch.nn.Module, *, exact: bool) -> None:
        self._compiled, self._module, self._exact = compiled, module, exact
        self._variants = [Variant(compiled())]
        self._is_whole = True
        self._truth_at: set[Place] = set()
        self._suspect: Place | None = None  # heard the truth for the first time in the latest attempt
        self._failed_at = ""

    def begin_anew(self) -> None:
        """Drops all that was captured, after an error: Dynamo abandons a frame that one leaves while it traces."""
        del self._variants[:-1]
        self._variants[0].begin_anew()
        self._is_whole, self._suspect, self._failed_at = True, None, ""
        self._truth_at.clear()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        refuse_where_nothing_is_captured(self._module, args, kwargs)
        variant = next((v for v in self._variants if v.serves(args, kwargs)), None)
        if variant is None:
            variant = Variant(self._compiled())
            self._variants = [*self._variants[-_VARIANTS:], variant]
        while self._is_whole:
            breaks = graph_breaks()
            try:
                with (
                    queries_answered(self._truth_at) as answers,
                    known_branches(args, kwargs) as facts,
                    locks_entered(),
                    refused_graph_breaks(),
                ):
                    result = variant.call(*args, **kwargs)
            except capture_failures() as failure:
                forget_graph_breaks(breaks)
                self._is_whole = self._frees_place(failure, answers)
                variant.begin_anew()
            else:
                variant.facts += facts
                self._suspect = None
                return result
        with queries_answered(self._truth_at), known_branches():
            return variant.call(*args, **kwargs)

    def surroundings(self) -> AbstractContextManager[None]:
        """What torch is told about how to capture, for as long as the call lasts."""
        return _as_eager()

    def _frees_place(self, failure: Exception, answers: Answers) -> bool:
        """Changes what prevented one graph, if it can be changed; returns whether to try again."""
        if install_output_hooks(self._module, failure):
            return True
        if self._exact:
            return False
        if self._suspect is not None and _where(failure) == self._failed_at:
            self._truth_at.discard(self._suspect)  # it was not what it heard
            self._suspect = None
            return False
        self._suspect, self._failed_at = answers.place_behind(failure), _where(failure)
        if self._suspect is not None:
            self._truth_at.add(self._suspect)
        return self._suspect is not None


class CompiledCall(WholeCall):
    """A compiled call that captures what `torch.compile` captures: models hear that they are being compiled.

    Arguments:
        compiled, module: as of `WholeCall`.
    """

    def __init__(self, compiled: Callable[[], CompiledFunction], module: torch.nn.Module) -> None:
        super().__init__(compiled, module, exact=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        refuse_where_nothing_is_captured(self._module, args, kwargs)
        return self._variants[0].call(*args, **kwargs)

    def surroundings(self) -> AbstractContextManager[None]:
        return captured_as_compiled()


@contextlib.contextmanager
def _as_eager() -> Iterator[None]:
    with captured_as_eager(), real_layouts(), calls_kept(), geometries_learnt():
        yield


def _where(failure: BaseException) -> str:
    """The place in the user's code where a capture failed, as a key."""
    return "|".join(f"{f.filename}:{f.lineno}" for f in getattr(failure, "real_stack", None) or ())


def refuse_where_nothing_is_captured(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses a call that torch would let run past every capture.

    Raises:
        CaptureError: then, before anything of the model has run.
    """
    if reason := obstruction((args, kwargs), itertools.chain(module.parameters(), module.buffers())):
        raise CaptureError(reason)


def run_loudly(call: WholeCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a compiled function; what Dynamo would hide or wrap reaches the user as lowtide's own error.

    Raises:
        CaptureError: if the model exchanges the bytes of what it was given.
        RecompileLimit: where Dynamo would go on in eager, outside the budget.
        LowtideError: raised while compiling, without Dynamo's wrapping.
    """
    try:
        with told(), call.surroundings(), messages_said_once():
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
        if isinstance(inner, AssertionError) and "set_ on a graph input" in str(inner):
            raise CaptureError(BYTES_EXCHANGED) from error
        raise


BYTES_EXCHANGED = (
    "the model exchanges the bytes of a parameter or buffer while it runs (parameter.data = ...), which no captured "
    "graph can hold; nothing has been changed. Do it before the call. bitsandbytes' 4-bit layers do so in evaluations "
    "on processors with AVX512-BF16, after which their backward loses gradients with and without lowtide: set "
    "layer.support_avx512bf16_for_cpu = False on each Linear4bit before training."
)
