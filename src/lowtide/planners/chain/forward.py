"""The forward half of a program as a graph of its own: what the classical methods checkpoint.

Units: `_B` bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from lowtide._core import KEEP, NEVER
from lowtide.ir.graph import Role
from lowtide.planners.reductions.residence import last_needs
from lowtide.planners.reductions.stages import GapNumbers, StageProgram

AT_ONCE = 0  # dropped after its last use in the forward, kept again once it was rematerialised


@dataclass(frozen=True)
class Forward:
    """The forward half of one part.

    Arguments:
        program: whose stages it names.
        turn: the first stage behind it: where the part's second segment begins; where keeping everything takes most
            bytes, if a lone part has one segment only.
        stages: those before the turn that run a recipe, in order.
    """

    program: StageProgram
    turn: int
    stages: tuple[int, ...]

    @cached_property
    def outputs(self) -> dict[int, tuple[int, ...]]:
        """Per stage the values that it produces, by their place in the program."""
        number = {v: i for i, v in enumerate(self.program.values)}
        return {t: tuple(number[v] for v in self.program.stages[t].outputs) for t in self.stages}

    @cached_property
    def parents(self) -> dict[int, tuple[int, ...]]:
        """Per stage the other forward stages that it reads from."""
        inside = set(self.stages)
        producer, reads = self.program.producer, self.program.read_ids
        return {t: tuple(sorted({producer[v] for v in reads[t]} & inside)) for t in self.stages}

    def size_B(self, stage: int) -> int:
        """Bytes of what a stage produces."""
        return sum(self.program.size_B[v] for v in self.outputs[stage])

    @cached_property
    def ancestry(self) -> tuple[int, ...]:
        """The stage that most others lead to (the loss), and those. O(stages * edges / 64)."""
        leads: dict[int, int] = {}
        for place, t in enumerate(self.stages):
            leads[t] = 1 << place
            for parent in self.parents[t]:
                leads[t] |= leads[parent]
        if not leads:
            return ()
        sink = max(self.stages, key=lambda t: (leads[t].bit_count(), t))
        return tuple(t for place, t in enumerate(self.stages) if leads[sink] >> place & 1)

    @cached_property
    def trunk(self) -> tuple[int, ...]:
        """Every path from the main start to the loss: what is made of parameters or labels alone is outside it.

        The main start is, of the stages that read an input (or, if none does, nothing that a forward stage produces),
        the one that leads to most others. O(stages * edges / 64).
        """
        behind: dict[int, int] = {t: 1 << place for place, t in enumerate(self.ancestry)}
        for t in reversed(self.ancestry):
            for parent in self.parents[t]:
                behind[parent] |= behind[t]
        starts = [t for t in self.ancestry if self._reads_input(t)]
        starts = starts or [t for t in self.ancestry if not self.parents[t]]
        if not starts:
            return ()
        start = max(starts, key=lambda t: (behind[t].bit_count(), -t))
        return tuple(t for place, t in enumerate(self.ancestry) if behind[start] >> place & 1)

    def _reads_input(self, stage: int) -> bool:
        graph = self.program.graph
        reads = graph.recipes[self.program.stages[stage].recipe].read_values
        return any(graph.values[v].role is Role.INPUT for v in reads)

    @cached_property
    def articulation_points(self) -> tuple[int, ...]:
        """Stages through which every path of the trunk leads, its ends included.

        A stage is one iff no edge passes over it: the order is topological, and every stage of the trunk lies on a path
        from its one start to its one end. O(edges).
        """
        reach = {t: t for t in self.trunk}
        for t in self.trunk:
            for parent in self.parents[t]:
                if parent in reach:
                    reach[parent] = max(reach[parent], t)
        found, furthest = [], -1
        for t in self.trunk:
            if furthest <= t:
                found.append(t)
            furthest = max(furthest, reach[t])
        return tuple(found)


@dataclass(frozen=True)
class Linked:
    """What leads to the loss, in links.

    Arguments:
        half: the forward that is cut.
        links: the stages of each link, in order.
    """

    half: Forward
    links: tuple[tuple[int, ...], ...]

    @property
    def program(self) -> StageProgram:
        """The program whose forward it is."""
        return self.half.program

    @cached_property
    def link_of(self) -> dict[int, int]:
        """The link of each stage."""
        return {t: k for k, link in enumerate(self.links) for t in link}


def forwards(program: StageProgram) -> tuple[Forward, ...]:
    """Finds the forward half of every part, in the order of the parts' first segments. O(stages)."""
    segments: dict[int, list[int]] = {}
    for k, segment in enumerate(program.graph.segments):
        segments.setdefault(segment.part, []).append(k)
    found = []
    for own in segments.values():
        if len(own) > 1:
            turn = next(t for t, s in enumerate(program.stages) if s.segment == own[1])
        elif len(segments) == 1:
            turn = program.keep_all(0).peak_stage
        else:
            continue  # a part that only runs forward has nothing to rematerialise
        inside = (t for t in range(turn) if program.stages[t].segment == own[0])
        found.append(Forward(program, turn, tuple(t for t in inside if program.stages[t].recipe >= 0)))
    return tuple(found)


def retention_of(halves: Iterable[Forward], when: Mapping[int, int], program: StageProgram) -> GapNumbers:
    """Writes down what becomes of the values between forward and backward.

    Arguments:
        when: per value `KEEP`, `AT_ONCE`, `NEVER` (rematerialised for each need and dropped again), or the stage from
            which on it is kept again. Values that are not named are kept, and so are those that nothing can
            rematerialise for as long as they may be needed: a copy of a buffer, say, that the forward changes.

    Returns: a retention, one number per gap. O(values).
    """
    core, needs = program.core, last_needs(program)
    retention: GapNumbers = program.keep_all(0).taus
    for half in halves:
        for t in half.stages:
            for v in half.outputs[t]:
                gap = core.gap_at(v, half.turn)
                since = when.get(v, KEEP)
                if since != KEEP and core.is_free(gap) and program.stages[t].recompute_through >= needs[v]:
                    retention[gap] = since if since == NEVER else max(since, core.gap_start(gap) + 1)
    return retention


def retention_of_checkpoints(
    program: StageProgram, halves: Iterable[Forward], checkpoints: Iterable[int]
) -> GapNumbers:
    """The retention that keeps what some forward stages make, and rematerialises everything else once. O(values)."""
    kept, halves = set(checkpoints), tuple(halves)
    when = {v: AT_ONCE for half in halves for t in half.stages if t not in kept for v in half.outputs[t]}
    return retention_of(halves, when, program)
