"""A schedule without copies, carried out by a static policy that offloads values to the host and back.

The walk keeps the clock of `lowtide.ir.simulate` while it writes, so "the copy is done" is known as it would be on the
machine. Within a budget it first waits for copies in progress, then drops what was fetched too early, then, if the
policy has a cache, evicts what was used least recently. Values are never changed, so a copy on the host is valid until
dropped, and a second eviction of the same value costs nothing.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lowtide.ir.graph import Effect, Recipe
from lowtide.ir.machine import Link, Machine
from lowtide.ir.schedule import DEVICE, HOST, Boundary, Drop, Fetch, Run, Schedule, Send, Step
from lowtide.planners.classic.itinerary import Itinerary


class NoCapacity(Exception):
    """The policy has nothing more to offload and does not fit."""


@dataclass(frozen=True)
class Policy:
    """What is offloaded, and when.

    Arguments:
        sent: values that are copied to the host as soon as they are made.
        ahead: value -> place from which on it is prefetched, if it fits; others come when a run reads them.
        lazy: what was sent is kept on the device until its bytes are needed; else it is dropped when its copy is done.
        cache: whether anything idle may be evicted, least recently used first.
    """

    sent: Collection[int] = frozenset()
    ahead: Mapping[int, int] = field(default_factory=dict)
    lazy: bool = False
    cache: bool = False


def carried(
    trip: Itinerary, policy: Policy, machine: Machine, budget_B: int | None, host_budget_B: int | None = None
) -> Schedule:
    """Writes the schedule of a policy.

    Arguments:
        trip: what runs when, without copies.
        machine: with a link in each direction.
        budget_B: device bytes. None for as few as the policy can live in: every copy is waited for, nothing is
            fetched ahead, and a cache keeps nothing that does not run.
        host_budget_B: host bytes; None for no limit.

    Raises:
        NoCapacity: if the policy does not fit.

    O(steps * values evicted at once).
    """
    walk = _Walk(trip, policy, machine, budget_B, host_budget_B)
    for place, step in enumerate(trip.schedule.steps):
        walk.step(place, step)
    return Schedule(tuple(walk.steps))


def links_of(machine: Machine) -> tuple[Link, Link] | None:
    """The links to the host and back; None where one is missing. The machine's first memory is the device's."""
    device = machine.memories[0].name if machine.memories else DEVICE
    ends = {(link.source, link.target): link for link in machine.links}
    there, back = ends.get((device, HOST)), ends.get((HOST, device))
    return None if there is None or back is None else (there, back)


class _Walk:
    """The state behind the steps written so far.

    Invariant: `there` holds the values on the device, and `live_B` their bytes; `idle` those of them that may leave,
    least recently touched first; `on_host` those on the host, and `host_B` theirs. `known` are the copies that compute
    has waited for.
    """

    def __init__(
        self, trip: Itinerary, policy: Policy, machine: Machine, budget_B: int | None, host_budget_B: int | None
    ) -> None:
        links = links_of(machine)
        assert links is not None, "planners refuse machines without links"
        self.trip, self.policy, self.links = trip, policy, links
        self.graph = trip.graph
        self.budget_B, self.host_budget_B = budget_B, host_budget_B
        self.steps: list[Step] = []
        self.stops_s: list[float] = []
        self.compute_s, self.to_host_s, self.from_host_s = 0.0, 0.0, 0.0
        self.there = {v.id for v in self.graph.values if v.persistent}
        self.idle: dict[int, None] = {}
        self.live_B = self.graph.persistent_B
        self.on_host: dict[int, int] = {}  # value -> the step that sent it
        self.host_B = 0
        self.using: dict[int, list[int]] = {}  # value on the device -> copies that touch it there
        self.known: set[int] = set()
        self.leaving: dict[int, int] = {}  # sent, still on the device, not used since -> the step that sent it
        self.early: dict[int, None] = {}  # fetched, not used since
        self.spent: dict[int, None] = {}  # used for the last time, but a copy of it is in progress
        self.due = sorted(policy.ahead, key=lambda v: (policy.ahead[v], trip.crossing[v][1]), reverse=True)
        self.place = 0
        self.last_run: tuple[int, ...] = ()  # and the copies that drops have waited for since

    # steps of the schedule without copies

    def step(self, place: int, step: Step) -> None:
        self.place = place
        match step:
            case Run():
                self._run(place, step, self.graph.recipes[step.recipe])
            case Drop(value=value):
                self._give_up(value)
            case Boundary(segment=segment):
                self._boundary(segment)
            case _:
                raise AssertionError("the schedule has no copies yet")
        self._let_go()

    def _run(self, place: int, step: Run, recipe: Recipe) -> None:
        locked = {*recipe.read_values, *step.keep}
        for value in [v for v in step.keep if v in self.spent]:
            self._evict(value)
        for value in recipe.read_values:
            if value not in self.there:
                self._fetch(value, locked)
            if place >= self.trip.turn:
                self.leaving.pop(value, None)
        inner_B = self._inner_B(step, recipe)
        self._make_free(inner_B, locked)
        self._fetch_ahead(inner_B, locked)
        touching = [copy for v in recipe.read_values for copy in self.using.get(v, ()) if copy not in self.known]
        consumed = {t.value for t in recipe.consumes}
        fetches = [c for c in touching if isinstance(self.steps[c], Fetch)]
        overwritten = [c for v in consumed for c in self.using.get(v, ()) if c not in self.known]
        for value in consumed:
            if value in self.on_host:
                self._drop_host(value)
        self._write(Run(step.recipe, step.keep, self._waits(*fetches, *overwritten)), recipe.time_s)
        self.last_run = (len(self.steps) - 1,)
        for value in consumed:
            self._gone(value)
        for value in step.keep:
            self._come(value)
        for value in recipe.read_values:
            if value in self.idle:
                self.idle[value] = self.idle.pop(value)  # the last to be touched
                self.early.pop(value, None)
        self._send_made(step.keep)

    def _boundary(self, segment: int) -> None:
        values = self.graph.values
        for v in values:
            if v.leaves == segment - 1 and not (v.held or v.persistent) and v.id in self.there:
                self._gone(v.id)
        arriving = [v.id for v in self.graph.arriving if v.arrives == segment and v.id not in self.there]
        self._make_free(sum(values[v].size_B for v in arriving), ())
        self._write(Boundary(segment), 0.0)
        for value in arriving:
            self._come(value)
        self._send_made(arriving)

    def _give_up(self, value: int) -> None:
        """Its last use is over: drops it in both memories."""
        if self.budget_B is not None and any(self.stops_s[c] > self.compute_s for c in self.using.get(value, ())):
            self.spent[value] = None
            return
        if value in self.there:
            self._drop(value)
        if value in self.on_host:
            self._drop_host(value)
        self.spent.pop(value, None)

    def _let_go(self) -> None:
        """What a step leaves behind: copies that are done free the device."""
        for value in list(self.spent):
            self._give_up(value)
        if self.budget_B is None and self.policy.cache:
            for value in list(self.idle):
                self._evict(value)
        if self.policy.lazy and self.budget_B is not None:
            return
        for value, send in list(self.leaving.items()):
            rest, back = self.trip.crossing[value]
            is_due = self.policy.ahead.get(value, back) <= self.place
            done = self.budget_B is None or (self.stops_s[send] <= self.compute_s and not is_due)
            if self.place >= rest and done:
                self._drop(value)

    # capacity

    def _make_free(self, more_B: int, locked: Collection[int]) -> None:
        while self.budget_B is not None and self.live_B + more_B > self.budget_B:
            victim = self._victim(locked)
            if victim is None:
                raise NoCapacity
            self._evict(victim)

    def _victim(self, locked: Collection[int]) -> int | None:
        if self.spent:
            return next(iter(self.spent))
        for value in self.leaving:
            if value not in locked and self.place >= self.trip.crossing[value][0]:
                return value
        for value in reversed(self.early):
            if value not in locked:
                self.due.append(value)
                return value
        if self.policy.cache:
            return next((v for v in self.idle if v not in locked), None)
        return None

    def _evict(self, value: int) -> None:
        if value not in self.on_host and not self._send(value):
            raise NoCapacity
        self._drop(value)
        if value in self.spent:
            self._give_up(value)

    def _fetch_ahead(self, inner_B: int, locked: set[int]) -> None:
        while self.due and self.budget_B is not None and self.policy.ahead[self.due[-1]] <= self.place:
            value = self.due[-1]
            absent = value not in self.there and value in self.on_host
            if absent and self.live_B + inner_B + self.graph.values[value].size_B > self.budget_B:
                return
            self.due.pop()
            if absent:
                self._fetch(value, locked)
                self.early[value] = None

    # copies

    def _send_made(self, values: Collection[int]) -> None:
        if self.place >= self.trip.turn:
            return
        for value in values:
            is_offloaded = value in self.policy.sent and value in self.trip.crossing and value not in self.on_host
            if is_offloaded and self._send(value):
                self.leaving[value] = self.on_host[value]

    def _send(self, value: int) -> bool:
        """Copies a value to the host; False where it does not fit on the host."""
        size_B = self.graph.values[value].size_B
        if self.host_budget_B is not None and self.host_B + size_B > self.host_budget_B:
            for copy in [v for v in self.on_host if v in self.there and v not in self.leaving]:
                self._drop_host(copy)
            if self.host_B + size_B > self.host_budget_B:
                return False
        own = [c for c in self.using.get(value, ()) if c not in self.known]
        link = self.links[0]
        start_s = max(self.compute_s, self.to_host_s, *(self.stops_s[c] for c in own), 0.0)
        self.to_host_s = start_s + link.latency_s + size_B / link.rate_Bps
        self.steps.append(Send(value, HOST, tuple(sorted({*self.last_run[:1], *own}))))
        self.stops_s.append(self.to_host_s)
        self.on_host[value] = len(self.steps) - 1
        self.host_B += size_B
        self.using.setdefault(value, []).append(len(self.steps) - 1)
        return True

    def _fetch(self, value: int, locked: Collection[int]) -> None:
        size_B = self.graph.values[value].size_B
        self._make_free(size_B, locked)
        sent = self.on_host[value]
        link = self.links[1]
        start_s = max(self.compute_s, self.from_host_s, self.stops_s[sent])
        self.from_host_s = start_s + link.latency_s + size_B / link.rate_Bps
        self.steps.append(Fetch(value, HOST, tuple(sorted({*self.last_run, sent}))))
        self.stops_s.append(self.from_host_s)
        self._come(value)
        self.using[value] = [len(self.steps) - 1]

    def _drop(self, value: int) -> None:
        waits = self._waits(*self.using.get(value, ()))
        self._write(Drop(value, DEVICE, waits), 0.0)
        self.last_run += waits  # whoever gets the bytes next waits for them as well
        self._gone(value)

    def _drop_host(self, value: int) -> None:
        fetches = (c for c in self.using.get(value, ()) if isinstance(self.steps[c], Fetch))
        self._write(Drop(value, HOST, self._waits(self.on_host.pop(value), *fetches)), 0.0)
        self.host_B -= self.graph.values[value].size_B

    # books

    def _waits(self, *copies: int) -> tuple[int, ...]:
        return tuple(sorted(set(copies) - self.known))

    def _write(self, step: Run | Drop | Boundary, time_s: float) -> None:
        waits = () if isinstance(step, Boundary) else step.after
        self.compute_s = max(self.compute_s, *(self.stops_s[c] for c in waits), 0.0) + time_s
        self.known.update(waits)
        self.steps.append(step)
        self.stops_s.append(self.compute_s)

    def _come(self, value: int) -> None:
        self.there.add(value)
        if value in self.trip.movable:
            self.idle[value] = None
        self.live_B += self.graph.values[value].size_B

    def _gone(self, value: int) -> None:
        self.there.remove(value)
        self.live_B -= self.graph.values[value].size_B
        self.using.pop(value, None)
        for books in (self.idle, self.early):
            books.pop(value, None)
        self.leaving.pop(value, None)

    def _inner_B(self, step: Run, recipe: Recipe) -> int:
        """What a run allocates on top of what is live, as the simulator counts it."""
        state_B = 0 if recipe.state is None else self.graph.values[recipe.state].size_B
        saves = recipe.effect is Effect.RANDOM and recipe.state in step.keep
        replays = recipe.effect is Effect.PURE and recipe.state is not None
        return recipe.trace.peak_B + (state_B if saves or replays else 0)
