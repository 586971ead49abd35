"""A function of a module in a process of its own: arguments in and rows out as JSON, inside limits of time, memory and cores.

A measurement has a process of its own where it must not find what an earlier one left (caches, compiled code, a warm heap),
or where it may be stopped, refused or killed without taking the table with it. What the function prints goes to stderr;
what it hands over and what it returns come back through a pipe, so that everything said before a bad end stays known.

`python -m benchmarks.runner MODULE:FUNCTION '[ARGUMENTS, ...]'` runs one by hand and prints its rows and its answer.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

HandOver = Callable[[Any], None]
"""Sends one row to the process that waits. A function whose first parameter is called `hand_over` is given one."""
_LOOK_s = 0.5  # between two looks at the clock and at the memory of a process


@dataclass(frozen=True)
class Limits:
    """What a process may use; None for any amount.

    Arguments:
        elapsed_s: on the clock; then it is killed.
        processor_s: of processor time; then it is killed.
        resident_B: of resident memory, as seen twice a second; then it is killed.
        address_B: of addresses; its allocations fail beyond that.
        core: the only core that it runs on.
    """

    elapsed_s: float | None = None
    processor_s: int | None = None
    resident_B: int | None = None
    address_B: int | None = None
    core: int | None = None

    def impose(self) -> None:
        """Called in the process, before its function."""
        if self.processor_s is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (self.processor_s, self.processor_s + 5))
        if self.address_B is not None:
            resource.setrlimit(resource.RLIMIT_AS, (self.address_B, self.address_B))
        if self.core is not None:
            os.sched_setaffinity(0, {self.core})


UNLIMITED = Limits()


@dataclass(frozen=True)
class Ended:
    """What a process left.

    Arguments:
        rows: that its function handed over.
        answer: what its function returned; None if it did not.
        failure: why it did not return; None if it did.
        code: of its end; minus the number of the signal that ended it.
        errors: what it printed, where that was not shown.
        processor_s: of processor time.
        peak_B: the most resident bytes.
    """

    rows: list[Any]
    answer: Any
    failure: str | None
    code: int
    errors: str
    elapsed_s: float
    processor_s: float
    peak_B: int


class Process:
    """One function under way; `select` may wait for it, and for several.

    Arguments:
        function: at the top of a module; its arguments and what it returns can be written as JSON.
        environment: variables beside those of this process.
        quiet: whether what it prints is kept for `Ended.errors` instead of being shown.
        forked: from this process, with the modules that it has imported, in place of a fresh interpreter. This process must
            have no other threads, and must have computed nothing.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        limits: Limits = UNLIMITED,
        environment: Mapping[str, str] | None = None,
        quiet: bool = True,
        forked: bool = False,
    ) -> None:
        self.limits, self.killed = limits, ""
        self._said = tempfile.TemporaryFile() if quiet else None  # noqa: SIM115
        self._data, self._begun_s = b"", time.perf_counter()
        self._read, write_end = os.pipe()
        if forked:
            self._pid = os.fork()
            if self._pid == 0:
                self._as_child(function, arguments, write_end)
        else:
            self._pid = self._fresh(function, arguments, write_end, dict(environment or {}))
        os.close(write_end)

    def _as_child(self, function: Callable[..., Any], arguments: tuple[Any, ...], write_end: int) -> None:
        """Never returns."""
        os.close(self._read)
        if self._said is not None:
            os.dup2(self._said.fileno(), 2)
        os._exit(_serve(function, list(arguments), self.limits, write_end))

    def _fresh(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], write_end: int, environment: dict[str, str]
    ) -> int:
        command = [sys.executable, "-m", "benchmarks.runner", name_of(function), json.dumps(arguments, default=str)]
        command += ["--pipe", str(write_end), "--limits", json.dumps(asdict(self.limits))]
        process = subprocess.Popen(
            command, stdout=self._said, stderr=self._said, env=os.environ | environment, pass_fds=(write_end,)
        )
        process.returncode = 0  # it is waited for in `ended`, with what it used
        return process.pid

    def fileno(self) -> int:
        """Ready when it said something, and at its end."""
        return self._read

    def pump(self) -> bool:
        """Reads what there is; False at the end."""
        data = os.read(self._read, 1 << 16)
        self._data += data
        return bool(data)

    def watch(self) -> None:
        """Kills it if it is over a limit that the system does not hold."""
        limits = self.limits
        if limits.elapsed_s is not None and time.perf_counter() - self._begun_s > limits.elapsed_s:
            self.kill(f"over {limits.elapsed_s:.0f} s")
        elif limits.resident_B is not None and _resident_B(self._pid) > limits.resident_B:
            self.kill(f"more than {limits.resident_B >> 30} GiB of memory")

    def kill(self, why: str) -> None:
        """Ends it at once, with a reason for `Ended.failure`."""
        if not self.killed:
            self.killed = why
            os.kill(self._pid, signal.SIGKILL)

    def ended(self) -> Ended:
        """Waits for it."""
        os.close(self._read)
        _, status, used = os.wait4(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        errors = ""
        if self._said is not None:
            self._said.seek(0)
            errors = self._said.read().decode(errors="replace")
            self._said.close()
        said = [json.loads(line) for line in self._data.split(b"\n")[:-1]]
        end = next((line for line in said if "answer" in line), {})
        failure = None if end else self._why(code, next((line["failure"] for line in said if "failure" in line), None))
        return Ended(
            rows=[line["row"] for line in said if "row" in line],
            answer=end.get("answer"),
            failure=failure,
            code=code,
            errors=errors,
            elapsed_s=time.perf_counter() - self._begun_s,
            processor_s=used.ru_utime + used.ru_stime,
            peak_B=used.ru_maxrss * 1024,
        )

    def _why(self, code: int, failure: str | None) -> str:
        if self.killed or failure:
            return self.killed or str(failure)
        if code == -signal.SIGXCPU:
            return f"more than {self.limits.processor_s} s of processor time"
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def run(
    function: Callable[..., Any],
    *arguments: Any,
    limits: Limits = UNLIMITED,
    environment: Mapping[str, str] | None = None,
    quiet: bool = True,
) -> Ended:
    """Calls a function in a process of its own, and waits for its end, whatever that is.

    Arguments: as for `Process`.
    """
    process = Process(function, arguments, limits=limits, environment=environment, quiet=quiet)
    try:
        while True:
            process.watch()
            if select.select([process], [], [], _LOOK_s)[0] and not process.pump():
                break
    except BaseException:
        process.kill("no longer wanted")
        process.ended()
        raise
    return process.ended()


def answer_of(function: Callable[..., Any], *arguments: Any, quiet: bool = True) -> Any:
    """What a function returns in a process of its own.

    Arguments: as for `Process`.

    Raises:
        RuntimeError: if it did not return.
    """
    ended = run(function, *arguments, quiet=quiet)
    if ended.failure is not None:
        raise RuntimeError(f"{name_of(function)}{arguments}: {ended.failure}\n{ended.errors[-4000:]}")
    return ended.answer


def name_of(function: Callable[..., Any]) -> str:
    """MODULE:FUNCTION, under which another process finds it.

    Raises:
        ValueError: if it is not at the top of a module.
    """
    module, name = function.__module__, function.__qualname__
    if module == "__main__":
        module = sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
    if not name.isidentifier():
        raise ValueError(f"{module}.{name} is not at the top of a module")
    return f"{module}:{name}"


def _resident_B(pid: int) -> int:
    """Resident bytes of a process; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _serve(function: str | Callable[..., Any], arguments: list[Any], limits: Limits, write_end: int) -> int:
    """Runs in the process: imposes limits, calls, and sends. Returns the exit code."""
    os.set_inheritable(write_end, False)
    os.dup2(2, 1)

    def send(line: Mapping[str, Any]) -> None:
        data = json.dumps(line).encode() + b"\n"
        while data:
            data = data[os.write(write_end, data) :]

    try:
        limits.impose()
        send({"answer": _called(function, arguments, lambda row: send({"row": row}))})
    except BaseException as error:
        send({"failure": f"{type(error).__name__}: {error}"})
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _called(function: str | Callable[..., Any], arguments: list[Any], hand_over: HandOver) -> Any:
    if isinstance(function, str):
        module, _, name = function.partition(":")
        function = getattr(importlib.import_module(module), name)
    first = next(iter(inspect.signature(function).parameters), "")
    return function(*([hand_over] if first == "hand_over" else []), *arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs one function in this process; by hand, or for `Process`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("function", metavar="MODULE:FUNCTION")
    parser.add_argument("arguments", nargs="?", type=json.loads, default=[], metavar="JSON", help="a list")
    parser.add_argument("--limits", type=json.loads, default={}, metavar="JSON", help="an object, by `Limits`")
    parser.add_argument("--pipe", type=int, help="file descriptor of whoever waits")
    options = parser.parse_args(arguments)
    limits = Limits(**options.limits)
    if options.pipe is not None:
        return _serve(options.function, options.arguments, limits, options.pipe)
    limits.impose()
    print(json.dumps(_called(options.function, options.arguments, lambda row: print(json.dumps(row), flush=True))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
