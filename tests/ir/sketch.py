"""A graph under construction, for examples and random graphs. Units: `_B` bytes, `_s` seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lowtide.ir.call import Arg, Read, Ref
from lowtide.ir.graph import (
    Effect,
    Graph,
    Group,
    MiniTrace,
    Option,
    Recipe,
    Role,
    Segment,
    Takeover,
    Value,
)


@dataclass
class Sketch:
    """Values and recipes get their ids in the order in which they are added."""

    parts: Sequence[int] = (0,)
    values: list[Value] = field(default_factory=list)
    recipes: list[Recipe] = field(default_factory=list)
    program: list[int] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)

    def value(self, size_B: int, role: Role = Role.ACTIVATION, name: str = "", **facts: Any) -> int:
        """Adds a value and returns its id."""
        number = len(self.values)
        self.values.append(Value(number, name or f"v{number}", size_B, role, **facts))
        return number

    def persistent(self, size_B: int, role: Role = Role.PARAMETER, name: str = "", **facts: Any) -> int:
        """Adds a persistent value and returns its id."""
        return self.value(size_B, role, name, arrives=0, persistent=True, **facts)

    def change(self, value: int, **facts: Any) -> None:
        """Replaces facts of a value."""
        self.values[value] = msgspec.structs.replace(self.values[value], **facts)

    def recipe(
        self,
        op: str,
        reads: Sequence[int | Read],
        outputs: Sequence[int],
        *,
        inner_B: Sequence[int] = (),
        workers_B: int = 0,
        consumes: Sequence[tuple[int, int | None]] = (),
        effect: Effect = Effect.PURE,
        state: int | None = None,
        segment: int = 0,
        time_s: float = 1.0,
        engine: str = "compute",
        args: tuple[Arg, ...] | None = None,
        program: bool = True,
    ) -> int:
        """Adds a recipe and returns its id.

        Arguments:
            reads: value ids, or reads through views.
            outputs: existing value ids; a RANDOM recipe's `state` is appended.
            inner_B: transient allocations: all live at once, before the outputs come.
            consumes: pairs of a value id and the index of the output that takes its storage over.
        """
        heirs = {output for _, output in consumes if output is not None}
        events, bases = list(inner_B), []
        for index, output in enumerate(outputs):
            size_B = self.values[output].size_B
            if index in heirs or size_B == 0:
                bases.append(None)
            else:
                bases.append(len(events))
                events.append(size_B)
        events += [-(k + 1) for k in range(len(inner_B))]
        read_list = tuple(r if isinstance(r, Read) else Read(r) for r in reads)
        number = len(self.recipes)
        saved = (state,) if effect is Effect.RANDOM and state is not None else ()
        self.recipes.append(
            Recipe(
                id=number,
                op=op,
                outputs=(*outputs, *saved),
                reads=read_list,
                paths=tuple((k,) for k in range(len(outputs))) if len(outputs) != 1 else ((),),
                args=tuple(Ref(k) for k in range(len(read_list))) if args is None else args,
                segment=segment,
                effect=effect,
                consumes=tuple(Takeover(v, o) for v, o in consumes),
                engine=engine,
                time_s=time_s,
                trace=MiniTrace(tuple(events), tuple(bases), workers_B, measured=True),
                state=state,
            )
        )
        if program:
            self.program.append(number)
        return number

    def again(self, original: int, **changes: Any) -> int:
        """Adds another implementation of the same function, which the program does not run."""
        old = self.recipes[original]
        facts: dict[str, Any] = {
            "segment": old.segment,
            "effect": old.effect,
            "state": old.state,
            "args": old.args,
            "consumes": [(t.value, t.output) for t in old.consumes],
            "time_s": old.time_s,
        }
        outputs = [v for v in old.outputs if not (old.effect is Effect.RANDOM and v == old.state)]
        return self.recipe(old.op, old.reads, outputs, program=False, **{**facts, **changes})

    def fused(self, parts: Sequence[int], reads: Sequence[int], outputs: Sequence[int], **facts: Any) -> int:
        """Adds a recipe that does what several recipes do, without their values in between."""
        facts = {"segment": self.recipes[parts[0]].segment, **facts}
        return self.recipe("fused", reads, outputs, args=tuple(parts), program=False, **facts)

    def group(self, name: str, *options: Sequence[int]) -> None:
        """Adds a group; the first option is the program's."""
        found = tuple(Option(f"option {k}", tuple(option)) for k, option in enumerate(options))
        self.groups.append(Group(name, found))

    def build(self) -> Graph:
        """Freezes it."""
        segments = tuple(Segment(f"s{k}", part) for k, part in enumerate(self.parts))
        return Graph(
            tuple(self.values), tuple(self.recipes), tuple(self.program), segments, tuple(self.groups), "sketch"
        )
