"""Execution traces by hand and by chance, as lines of JSON. Units: `_B` bytes, `_ns` nanoseconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any


class Eager:
    """An eager program that writes down what it does, and how many bytes its names hold meanwhile."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.storages: dict[str, tuple[int, int]] = {}  # name -> identity and bytes of its storage
        self.peak_B = self.time_ns = 0
        self.write(INSTRUCTION="ANNOTATE", ANNOTATION="START")

    @property
    def text(self) -> str:
        """The trace."""
        return "\n".join(self.lines)

    def write(self, **facts: Any) -> None:
        """Adds a line; numbers are written as strings, as the published traces have them."""
        self.lines.append(json.dumps({k: str(v) if isinstance(v, int) else v for k, v in facts.items()}))

    def constant(self, name: str, size_B: int) -> None:
        """A tensor that is there from the beginning."""
        self.write(INSTRUCTION="CONSTANT", NAME=name)
        self._memory(name, size_B)

    def call(
        self, op: str, args: Sequence[str], results: Sequence[tuple[str, int]], time_ns: int = 1000, alias: int = -1
    ) -> None:
        """An operator; all its results are fresh, or all aliases of one argument."""
        self.write(INSTRUCTION="CALL", NAME=op, ARGS=list(args), RESULT=[n for n, _ in results], TIME=time_ns)
        self.time_ns += time_ns if alias < 0 else 0
        for name, size_B in results:
            self._memory(name, size_B, None if alias < 0 else args[alias])
            self.write(INSTRUCTION="ALIAS", NAME=name, ALIAS=alias)

    def mutate(self, op: str, args: Sequence[str], changed: Sequence[int], time_ns: int = 1000) -> None:
        """An operator in place. Read as one that makes its results anew, it holds both contents for a while."""
        self.write(INSTRUCTION="MUTATE", NAME=op, ARGS=list(args), MUTATE=list(changed), TIME=time_ns)
        self.time_ns += time_ns
        written = {self.storages[args[i]] for i in changed}
        self.peak_B = max(self.peak_B, self.live_B + sum(size_B for _, size_B in written))

    def copy(self, source: str, name: str) -> None:
        """One more name."""
        self.write(INSTRUCTION="COPY", SRC=source, DST=name)
        self.storages[name] = self.storages[source]

    def copy_from(self, source: str, name: str) -> None:
        """Another meaning of a name."""
        self.write(INSTRUCTION="COPY_FROM", SRC=source, DST=name)
        self.storages[name] = self.storages[source]

    def release(self, name: str) -> None:
        """One name less."""
        self.write(INSTRUCTION="RELEASE", NAME=name)
        del self.storages[name]

    def backward(self) -> None:
        """From here on."""
        self.write(INSTRUCTION="ANNOTATE", ANNOTATION="BACKWARD")

    @property
    def live_B(self) -> int:
        """Bytes of the storages that have names."""
        return sum(size_B for _, size_B in set(self.storages.values()))

    def _memory(self, name: str, size_B: int, base: str | None = None) -> None:
        self.write(INSTRUCTION="MEMORY", NAME=name, MEMORY=size_B)
        self.storages[name] = (len(self.lines), size_B) if base is None else self.storages[base]
        self.peak_B = max(self.peak_B, self.live_B)


def network() -> Eager:
    """y = relu_(x w), seen through a view; its gradient for w, which nobody releases."""
    eager = Eager()
    eager.constant("w", 100)
    eager.constant("x", 50)
    eager.call("matmul", ["x", "w"], [("y", 40)], time_ns=3000)
    eager.call("view", ["y"], [("v", 40)], time_ns=1, alias=0)
    eager.mutate("relu_", ["y"], [0], time_ns=2000)
    eager.call("sum", ["v"], [("loss", 4)], time_ns=1000)
    eager.backward()
    eager.call("ones_like", ["loss"], [("one", 4)], time_ns=500)
    eager.call("backward", ["one", "y", "x"], [("grad", 100), ("none", 0)], time_ns=4000)
    eager.copy("grad", "kept")
    for name in ("grad", "none", "one", "y", "v", "loss"):
        eager.release(name)
    return eager


def random_program(seed: int, calls: int = 30) -> Eager:
    """Operators, views, mutations, copies and releases in any order that is possible."""
    random, eager = Random(seed), Eager()
    for k in range(random.randint(1, 3)):
        eager.constant(f"c{k}", random.choice([0, 8, 100]))
    for k in range(calls):
        if k == calls // 2 and random.random() < 0.8:
            eager.backward()
        there = sorted(eager.storages)
        args = random.sample(there, min(len(there), random.randint(1, 3)))
        match random.randrange(10):
            case 0 | 1 | 2 | 3:
                results = [(f"r{k}.{i}", random.choice([0, 16, 100, 1000])) for i in range(random.randint(1, 2))]
                eager.call("call", args, results, random.randint(0, 5000))
            case 4:
                eager.call("view", args, [(f"v{k}", 7)], 3, alias=random.randrange(len(args)))
            case 5:
                eager.mutate("mutate_", args, sorted(random.sample(range(len(args)), random.randint(1, len(args)))))
            case 6:
                eager.copy(args[0], f"n{k}")
            case 7:
                eager.copy_from(args[0], args[-1])
            case _ if len(there) > 2:
                eager.release(args[0])
    eager.call("last", sorted(eager.storages)[:1], [("end", 8)])
    return eager
