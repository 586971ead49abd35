"""What Dynamo raises, and what it takes for a reason to run plain Python."""

from __future__ import annotations


def recompile_limit_error() -> type[Exception]:
    """What Dynamo raises at the recompile limit when told to."""
    from torch._dynamo.exc import FailOnRecompileLimitHit

    return FailOnRecompileLimitHit


def capture_failures() -> tuple[type[Exception], ...]:
    """What Dynamo raises where it cannot capture code: the code may run all the same."""
    from torch._dynamo.exc import TorchRuntimeError, Unsupported

    return (Unsupported, TorchRuntimeError)


def backend_failure() -> type[Exception]:
    """What Dynamo wraps an error in that was raised inside a backend."""
    from torch._dynamo.exc import BackendCompilerFailed

    return BackendCompilerFailed


def errors_left_to_eager() -> tuple[type[Exception], ...]:
    """What Dynamo takes from a backend as a graph break: it runs what it has captured in plain Python."""
    from torch._dynamo.exc import exceptions_allowed_to_be_fallback

    return exceptions_allowed_to_be_fallback
