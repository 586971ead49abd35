"""The graph to plan: values, the recipes that make them, and the captured program.

A *value* is one immutable content. A *recipe* makes values. The *program* is the order in which the captured network
ran its recipes; every other recipe is an alternative. A value may have several recipes: the same one again
(rematerialisation), the replay of a random one, another implementation. Nothing here knows torch.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from lowtide.ir.call import Arg, NamedArg, Read
from lowtide.ir.geometry import Geometry
from lowtide.ir.numerics import Numerics


class Role(enum.Enum):
    """A value's role in training."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    CONSTANT = "constant"
    ACTIVATION = "activation"
    OUTPUT = "output"  # handed to the caller by a forward segment
    UPDATE = "update"  # new content of a mutated input: written back by the caller at the boundary
    TANGENT = "tangent"  # gradient of an output: given by the caller
    GRADIENT = "gradient"  # handed to the caller by a backward segment
    STATE = "state"  # of the optimizer
    GENERATOR = "generator"  # state of the random generator before a random recipe ran


class Effect(enum.Enum):
    """Whether a recipe may be run more than once."""

    PURE = "pure"
    RANDOM = "random"  # advances the generator: runs once, in program order; a replay recipe may exist
    OPAQUE = "opaque"  # not known to be pure: runs once, in program order


class Value(msgspec.Struct, frozen=True):
    """One immutable content: what some recipe produced, or what the caller gave.

    Arguments:
        id: its index in `Graph.values`.
        size_B: bytes of the storage it needs, exact (not rounded to the allocator's granule).
        geometry: of the tensor over that storage.
        arrives: the segment at whose start the caller gives it; None when a recipe produces it.
        persistent: lives for the whole step in a storage of its own; no plan can drop it.
        leaves: the segment at whose end it is handed to the caller; None when it is internal.
        held: after leaving, the caller keeps it to the end of the step (else it frees it at once).
        readable_through: the last segment that may read it; None for no limit. A mutated input ends
            with the segment after which it is overwritten.
        handed_to: the value of another part as which the caller gives it back: a gradient that goes straight from one
            part's backward to another's. Its storage is held until that value is dropped.
        memory: where a persistent value is resident, and where a value that leaves is then. A host-resident one comes
            to the device by `Fetch` alone, and may be dropped there.
        movable: a planner may make it, and whatever replaces it, host-resident (`lowtide.ir.housing`).
        replaces: the persistent value whose storage it takes: a weight after its update.
    """

    id: int
    name: str
    size_B: int
    role: Role
    geometry: Geometry | None = None
    arrives: int | None = None
    persistent: bool = False
    leaves: int | None = None
    held: bool = True
    readable_through: int | None = None
    handed_to: int | None = None
    memory: str = "device"
    movable: bool = False
    replaces: int | None = None


class MiniTrace(msgspec.Struct, frozen=True):
    """A recipe's own allocations, in order: measured, or assumed to be its outputs alone.

    Arguments:
        events: `+size_B` for an allocation, `-(k + 1)` for the release of the k-th allocation.
        outputs: per output of the recipe, the allocation that holds it; None when it allocated nothing
            (an empty tensor, or one that lives in a storage it took over).
        workers_B: upper bound of bytes that worker threads hold meanwhile, besides the events.
        measured: False for an assumption.
    """

    events: tuple[int, ...] = ()
    outputs: tuple[int | None, ...] = ()
    workers_B: int = 0
    measured: bool = False

    @property
    def peak_B(self) -> int:
        """Most bytes allocated at once by the recipe itself, outputs and workers included."""
        sizes = [e for e in self.events if e >= 0]
        now = top = 0
        for event in self.events:
            now += event if event >= 0 else -sizes[-event - 1]
            top = max(top, now)
        return top + self.workers_B


class Takeover(msgspec.Struct, frozen=True):
    """Consumption: the recipe overwrites `value`; its storage now holds output `output`.

    The value is gone as if it had been dropped: a run may make it anew, in other bytes, unless the caller gave it.
    `output` is an index into `Recipe.outputs`; None when the storage is merely freed.
    """

    value: int
    output: int | None = None


class Origin(msgspec.Struct, frozen=True):
    """Where a recipe comes from in the user's source."""

    module: str = ""  # qualified name of the submodule, "transformer.h.0.mlp"
    source: str = ""  # "model.py:88"
    text: str = ""  # that line


class Recipe(msgspec.Struct, frozen=True):
    """A recipe: run `op` on `reads` to make `outputs`.

    Arguments:
        id: its index in `Graph.recipes`.
        op: name of the operator, `"aten.addmm.default"`.
        outputs: ids of the values it produces. Each may be dropped alone, and a run may keep any subset.
        paths: per output, the indices that lead to it in what the operator returns; `()` is the result itself.
        reads: the tensors it reads; `args` and `kwargs` name them by `Ref`.
        segment: where the program runs it; for an alternative, the first segment that may.
        consumes: values whose storage it overwrites.
        engine: where it runs; what it reads and makes is in that engine's memory (`lowtide.ir.schedule.memory_of`).
        time_s: seconds of one run.
        issue_s: of the processor, to issue it to a GPU; 0 on CPU, where that is the run.
        trace: its own allocations.
        state: the generator's state, a value. A RANDOM recipe produces it (last of its outputs, without a
            path: a run that keeps it saves the state first); a PURE one with a state reads it and replays.
        repeats: False where it was seen to give other bits from equal inputs; such a recipe is not PURE.
    """

    id: int
    op: str
    outputs: tuple[int, ...]
    reads: tuple[Read, ...] = ()
    paths: tuple[tuple[int, ...], ...] = ()
    args: tuple[Arg, ...] = ()
    kwargs: tuple[NamedArg, ...] = ()
    segment: int = 0
    effect: Effect = Effect.PURE
    consumes: tuple[Takeover, ...] = ()
    engine: str = "compute"
    time_s: float = 0.0
    issue_s: float = 0.0
    trace: MiniTrace = MiniTrace()
    state: int | None = None
    origin: Origin = Origin()
    repeats: bool = True

    @property
    def read_values(self) -> tuple[int, ...]:
        """Ids of the values it reads, the generator state of a replay included, without repetition."""
        ids = [r.value for r in self.reads]
        if self.effect is Effect.PURE and self.state is not None:
            ids.append(self.state)
        return tuple(dict.fromkeys(ids))


class Option(msgspec.Struct, frozen=True):
    """One implementation of a group: these recipes may run, the group's others may not.

    Arguments:
        numerics: how far its results may be from those of the program's own option.
    """

    name: str
    recipes: tuple[int, ...]
    numerics: Numerics = Numerics.EXACT


class Group(msgspec.Struct, frozen=True):
    """Alternatives that are chosen as one (a forward with its backward; several operators fused).

    Recipes outside every group are always allowed. `options[0]` is what the program runs. A recipe of another
    option that makes what one of `options[0]` makes takes its place in the program; any other one runs as soon as
    what it reads is there.

    Arguments:
        kind: what its options have in common, for those who switch them together: `"saved values"`.
    """

    name: str
    options: tuple[Option, ...]
    kind: str = ""

    def renumbered(self, ids: Mapping[int, int] | Sequence[int]) -> Group:
        """The same group where recipes have other ids."""
        options = (msgspec.structs.replace(o, recipes=tuple(ids[r] for r in o.recipes)) for o in self.options)
        return msgspec.structs.replace(self, options=tuple(options))


class Segment(msgspec.Struct, frozen=True):
    """A stretch of generated code between two returns to the caller.

    Arguments:
        name: "forward", "backward", "update", ...
        part: which captured graph of the bundle it belongs to. A value may be touched only in segments of
            its own part, unless a link hands it over (it then leaves one part and arrives in another).
    """

    name: str
    part: int = 0


class Graph(msgspec.Struct, frozen=True, dict=True):
    """Everything a planner may know.

    Arguments:
        program: recipe ids in the order in which the captured network first ran them; segments do not decrease.
        name: for messages.
        key: hash of what was captured, so that a plan finds its program again.
    """

    values: tuple[Value, ...]
    recipes: tuple[Recipe, ...]
    program: tuple[int, ...]
    segments: tuple[Segment, ...]
    groups: tuple[Group, ...] = ()
    name: str = ""
    key: str = ""

    @cached_property
    def producers(self) -> tuple[tuple[int, ...], ...]:
        """Per value, the recipes that can make it, the program's own first."""
        found: list[list[int]] = [[] for _ in self.values]
        in_program = set(self.program)
        rest = (r.id for r in self.recipes if r.id not in in_program)
        for recipe in (*self.program, *rest):
            for value in self.recipes[recipe].outputs:
                found[value].append(recipe)
        return tuple(tuple(f) for f in found)

    @property
    def trains(self) -> bool:
        """Whether it has a backward: in a segment of its own, or in one with the forward and the updates."""
        return len(self.segments) > 1 or any(v.role is Role.GRADIENT or v.replaces is not None for v in self.values)

    @property
    def persistent_B(self) -> int:
        """Bytes that live on the device for the whole step whatever the plan."""
        return sum(v.size_B for v in self.values if v.persistent and v.memory == "device")

    @property
    def hosted_B(self) -> int:
        """Bytes of persistent values that are host-resident."""
        return sum(v.size_B for v in self.values if v.persistent and v.memory != "device")

    @cached_property
    def handed(self) -> frozenset[int]:
        """Values that arrive in the very bytes in which one other value left: exactly one is handed to each."""
        count = Counter(v.handed_to for v in self.values if v.handed_to is not None)
        return frozenset(value for value, gradients in count.items() if gradients == 1)

    def concurrent_B(self, reserve_B: int) -> int:
        """Bytes of a reserve that are not in the plan as well: what the caller gives is counted in both."""
        given_B = sum(v.size_B for v in self.arriving if not v.persistent and v.id not in self.handed)
        return max(0, reserve_B - given_B)

    @property
    def arriving(self) -> Iterator[Value]:
        """Values that the caller gives."""
        return (v for v in self.values if v.arrives is not None)
