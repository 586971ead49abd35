"""Random schedules of a graph: written to be legal as far as that is easy, and damaged ones."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from lowtide.ir.graph import Effect, Graph, Recipe
from lowtide.ir.schedule import DEVICE, Boundary, Drop, Fetch, Run, Schedule, Send, Step


class DeadEnd(Exception):
    """The writer painted itself into a corner."""


class Writer:
    """Writes one schedule: each segment runs what the program runs there, bringing back what it dropped before.

    It keeps its own account of what is where, so that most of what it writes is legal.
    """

    def __init__(self, graph: Graph, random: Random, greed: float) -> None:
        self.graph = graph
        self.random = random
        self.greed = greed  # how readily values are dropped, 0 to 1
        self._start()

    def _start(self) -> None:
        graph = self.graph
        self.steps: list[Step] = []
        self.device = {v.id for v in graph.values if v.persistent}
        self.host: set[int] = set()
        self.gone: set[int] = set()
        self.ran: set[int] = set()
        self.busy: dict[int, list[int]] = {}  # value -> steps on other engines that touch it
        self.last: int | None = None  # the last compute step
        self.segment = -1
        self.allowed = self._choose_options()

    def write(self) -> Schedule:
        """Writes one schedule; after some dead ends it gives an unfinished one, which is illegal."""
        for _ in range(8):
            try:
                for segment in range(len(self.graph.segments)):
                    self._write_segment(segment)
                break
            except DeadEnd:
                unfinished = Schedule(tuple(self.steps))
                self._start()
        else:
            return unfinished
        return Schedule(tuple(self.steps))

    def _write_segment(self, segment: int) -> None:
        self._begin(segment)
        skipped = self.random.random() < 0.5
        for recipe in self._duties(segment):
            self._disturb()
            if recipe.effect is not Effect.PURE or (recipe.id in self.allowed and not (skipped and self._chance(0.3))):
                self._run(recipe, 0)
        for value in self.graph.values:
            if value.leaves == segment:
                self._bring(value.id, 0)
        for value in self.graph.values:
            if value.leaves == segment:
                self._settle(value.id)

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def _choose_options(self) -> set[int]:
        allowed = {r.id for r in self.graph.recipes}
        for group in self.graph.groups:
            chosen = self.random.choice(group.options)
            allowed -= {r for option in group.options for r in option.recipes} - set(chosen.recipes)
        return allowed

    def _duties(self, segment: int) -> list[Recipe]:
        """The program's recipes of a segment; stand-ins take the places of random and opaque ones not chosen."""
        duties = []
        for index in self.graph.program:
            recipe = self.graph.recipes[index]
            if recipe.segment != segment:
                continue
            if index not in self.allowed:
                group = next(g for g in self.graph.groups if index in g.options[0].recipes)
                stand_ins = [r for o in group.options for r in o.recipes if r in self.allowed]
                recipe = self.graph.recipes[stand_ins[0]]
            duties.append(recipe)
        return duties

    def _begin(self, segment: int) -> None:
        for value in self.graph.values:
            if value.leaves == segment - 1 and value.id in self.device and not (value.held or value.persistent):
                self._settle(value.id)
                self.device.discard(value.id)
        self.steps.append(Boundary(segment))
        self.segment = segment
        self.device |= {v.id for v in self.graph.values if v.arrives == segment}

    # steps

    def _wait(self, values: list[int]) -> tuple[int, ...]:
        return tuple(sorted({s for v in values for s in self.busy.pop(v, [])}))

    def _settle(self, value: int) -> None:
        """Some compute step must wait for whoever still touches the value: an empty recomputation does, if any."""
        if self.busy.get(value):
            pure = [r for r in self.graph.recipes if self._may_run(r) and set(r.read_values) <= self.device]
            pure = [r for r in pure if r.effect is Effect.PURE and r.engine == "compute" and not r.consumes]
            if not pure:
                raise DeadEnd
            recipe = self.random.choice(pure)
            self.steps.append(Run(recipe.id, (), self._wait([value, *recipe.read_values])))
            self.ran.add(recipe.id)
            self.last = len(self.steps) - 1

    def _may_run(self, recipe: Recipe) -> bool:
        graph = self.graph
        here = graph.segments[recipe.segment].part == graph.segments[self.segment].part
        limits = [graph.values[v].readable_through for v in recipe.read_values]
        readable = all(limit is None or limit >= self.segment for limit in limits)
        return recipe.id in self.allowed and here and recipe.segment <= self.segment and readable

    def _run(self, recipe: Recipe, depth: int) -> None:
        if recipe.effect is not Effect.PURE and recipe.id in self.ran:
            return
        if not self._may_run(recipe) or any(t.value in self.gone for t in recipe.consumes):
            raise DeadEnd
        for _ in range(3):  # bringing one value may drop another
            for value in recipe.read_values:
                self._bring(value, depth + 1)
        lost = [t.value for t in recipe.consumes]
        if any(v in self.host for v in lost):
            raise DeadEnd
        keep = [v for v in recipe.outputs if v not in self.device and v not in self.gone]
        if self.greed > 0.5:
            keep = [v for v in keep if self.random.random() < 0.9]
        after = self._wait([*recipe.read_values])
        if recipe.engine != "compute" and self.last is not None:
            after = (*after, self.last)
        self.steps.append(Run(recipe.id, tuple(keep), after))
        self.ran.add(recipe.id)
        index = len(self.steps) - 1
        if recipe.engine == "compute":
            self.last = index
        else:
            for value in (*keep, *recipe.read_values):
                self.busy.setdefault(value, []).append(index)
        self.device.update(keep)
        self.device.difference_update(lost)
        self.gone.update(v for v in lost if self.graph.values[v].arrives is not None)

    def _bring(self, value: int, depth: int) -> None:
        if value in self.device:
            return
        if value in self.gone or depth > 12:
            raise DeadEnd
        if value in self.host:
            self.steps.append(Fetch(value, "host", self._copy_edges(value)))
            self.busy.setdefault(value, []).append(len(self.steps) - 1)
            self.device.add(value)
            return
        candidates = [self.graph.recipes[r] for r in self.graph.producers[value]]
        candidates = [r for r in candidates if self._may_run(r) and (r.effect is Effect.PURE or r.id not in self.ran)]
        candidates = [r for r in candidates if r.effect is Effect.PURE or r.segment == self.segment]
        if not candidates:
            raise DeadEnd
        self._run(self.random.choice(candidates), depth)
        if value not in self.device:
            raise DeadEnd

    def _copy_edges(self, value: int) -> tuple[int, ...]:
        edges = {*self.busy.get(value, []), *([] if self.last is None else [self.last])}
        return tuple(sorted(edges))

    def _disturb(self) -> None:
        """Drops and copies, at random."""
        part = self.graph.segments[self.segment].part
        for value in sorted(self.device):
            facts = self.graph.values[value]
            makers = [self.graph.recipes[r] for r in self.graph.producers[value]]
            mine = {self.graph.segments[r.segment].part for r in makers} | {part for _ in [0] if not makers}
            held = facts.leaves is not None and facts.leaves < self.segment and facts.held
            if facts.persistent or held or part not in mine or self.random.random() > self.greed / 2:
                continue
            if self.random.random() < 0.3 and value not in self.host:
                self.steps.append(Send(value, "host", self._copy_edges(value)))
                self.busy.setdefault(value, []).append(len(self.steps) - 1)
                self.host.add(value)
            elif value in self.host or self.random.random() < 0.5 or any(r.effect is Effect.PURE for r in makers):
                try:
                    self._settle(value)
                except DeadEnd:
                    continue
                self.steps.append(Drop(value))
                self.device.discard(value)
        if self.host and self.random.random() < 0.2:
            value = self.random.choice(sorted(self.host))
            if not self.busy.get(value):
                self.steps.append(Drop(value, "host"))
                self.host.discard(value)


def damage(graph: Graph, schedule: Schedule, random: Random) -> Schedule:
    """Makes one small change, most often a harmful one."""
    steps = list(schedule.steps)
    at = random.randrange(len(steps))
    step = steps[at]

    def remove() -> None:
        del steps[at]

    def repeat() -> None:
        again = step
        if isinstance(step, Run):
            again = msgspec.structs.replace(step, keep=tuple(v for v in step.keep if random.random() < 0.3))
        steps.insert(random.randrange(at, len(steps)) + 1, again)

    def forget_effect() -> None:
        effects = _effects(graph, steps)
        if effects:
            del steps[random.choice(effects)]

    def swap_effects() -> None:
        effects = _effects(graph, steps)
        if len(effects) > 1:
            one = random.randrange(len(effects) - 1)
            a, b = effects[one], effects[one + 1]
            steps[a], steps[b] = steps[b], steps[a]

    def swap() -> None:
        other = min(at + 1, len(steps) - 1)
        steps[at], steps[other] = steps[other], steps[at]

    def move() -> None:
        steps.insert(random.randrange(len(steps)), steps.pop(at))

    def drop() -> None:
        steps.insert(at + 1, Drop(random.randrange(len(graph.values)), random.choice([DEVICE, DEVICE, "host"])))

    def run() -> None:
        recipe = random.choice(graph.recipes)
        steps.insert(at + 1, Run(recipe.id, tuple(v for v in recipe.outputs if random.random() < 0.6)))

    def forget_edges() -> None:
        if isinstance(step, Run | Send | Fetch):
            steps[at] = msgspec.structs.replace(step, after=step.after[1:])

    def keep_else() -> None:
        if isinstance(step, Run):
            outputs = graph.recipes[step.recipe].outputs
            steps[at] = msgspec.structs.replace(step, keep=tuple(v for v in outputs if random.random() < 0.5))

    def rename() -> None:
        if isinstance(step, Drop | Send | Fetch):
            steps[at] = msgspec.structs.replace(step, value=random.randrange(len(graph.values)))

    def copy() -> None:
        kind = random.choice([Send, Fetch])
        steps.insert(at + 1, kind(random.randrange(len(graph.values)), "host"))

    changes: list[Callable[[], None]] = [remove, repeat, repeat, swap, move, drop, run, keep_else, rename, copy]
    changes += [forget_effect, swap_effects, forget_edges, forget_edges]
    random.choice(changes)()
    return _renumber(schedule, Schedule(tuple(steps)))


def _effects(graph: Graph, steps: list[Step]) -> list[int]:
    runs = [(k, s.recipe) for k, s in enumerate(steps) if isinstance(s, Run)]
    return [k for k, recipe in runs if graph.recipes[recipe].effect is not Effect.PURE]


def _renumber(before: Schedule, after: Schedule) -> Schedule:
    """Keeps edges pointing at the steps they meant, where these still come earlier."""
    place = {id(step): index for index, step in enumerate(after.steps)}
    steps: list[Step] = []
    for index, step in enumerate(after.steps):
        if isinstance(step, Run | Send | Fetch):
            meant = [place.get(id(before.steps[e]), e) for e in step.after if e < len(before.steps)]
            step = msgspec.structs.replace(step, after=tuple(e for e in meant if e < index))
        steps.append(step)
    return Schedule(tuple(steps))
