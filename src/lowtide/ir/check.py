"""Whether a schedule is legal: every rule, checked step by step, slowly and plainly.

It shares no code with `simulate.py` or any planner, so that a mistake there is not repeated here.

What the caller sees (a persistent value, or one that was handed over and is held) may be overwritten only if the
caller expects that: its role is parameter, buffer, input, gradient or state, and what overwrites it is kept, handed
over in this segment or later, and held; so the caller finds new content where the old one was, never a hole.

Steps on different engines are ordered by `after` alone (and through other steps by it), except that steps of one
engine, and copies between the same two memories, run in issue order. `Drop` and `Boundary` happen on "compute".

A host-resident persistent value begins there. A value that replaces another is sent to that one's placement, after
which the old content can be read nowhere.

Units: `_B` bytes.
"""

from __future__ import annotations

from lowtide.ir.check_graph import check_graph, effect_slots, recipe_name, value_name, value_parts
from lowtide.ir.check_layout import Lifetime, Order, check_layout
from lowtide.ir.graph import Effect, Graph, Recipe, Role, Value
from lowtide.ir.layout import Layout
from lowtide.ir.rules import illegal
from lowtide.ir.schedule import DEVICE, HOST, HOST_ENGINE, Boundary, Drop, Fetch, Run, Schedule, Send

_COMPUTE = "compute"
_OVERWRITABLE = {Role.PARAMETER, Role.BUFFER, Role.INPUT, Role.GRADIENT, Role.STATE}


def check(
    graph: Graph,
    schedule: Schedule,
    budget_B: int | None = None,
    layout: Layout | None = None,
    host_budget_B: int | None = None,
) -> None:
    """Checks that a schedule may be carried out.

    Arguments:
        graph: checked for consistency first.
        schedule: any.
        budget_B: device bytes, the graph's persistent values included; None does not count bytes.
        layout: addresses of the schedule's allocations (`lowtide.ir.sequence.blocks_of`); None for no layout.
        host_budget_B: host bytes, of host-resident values and of what is sent there; None does not count them.

    Raises:
        IllegalPlan: names the first broken rule of `lowtide.ir.rules.RULES`, the step, and the value or recipe.

    O(steps * engines + segments * values), and with a layout O(blocks log blocks).
    """
    check_graph(graph)
    _references(graph, schedule)
    walk = _Walk(graph, schedule, budget_B, host_budget_B)
    for index, step in enumerate(schedule.steps):
        match step:
            case Run():
                walk.run(index, step)
            case Drop():
                walk.drop(index, step)
            case Send():
                walk.send(index, step)
            case Fetch():
                walk.fetch(index, step)
            case Boundary():
                walk.boundary(index, step)
    walk.end(len(schedule.steps))
    if layout is not None:
        check_layout(graph, schedule, walk.device_lifetimes, walk.order, layout)


def _references(graph: Graph, schedule: Schedule) -> None:
    """Everything named exists, segments come in order, and no step waits for a later one."""
    segments = 0
    for index, step in enumerate(schedule.steps):
        match step:
            case Run():
                if not 0 <= step.recipe < len(graph.recipes):
                    raise illegal("reference", f"recipe {step.recipe}", index)
            case Drop() | Send() | Fetch():
                if not 0 <= step.value < len(graph.values):
                    raise illegal("reference", f"value {step.value}", index)
                if not step.memory or (step.memory == DEVICE and not isinstance(step, Drop)):
                    raise illegal("reference", f"memory {step.memory!r}", index)
            case Boundary():
                if step.segment != segments:
                    raise illegal("boundaries", f"segment {step.segment}", index)
                segments += 1
        if index == 0 and not isinstance(step, Boundary):
            raise illegal("boundaries", "the first step", index)
        if isinstance(step, Run | Send | Fetch | Drop):
            for earlier in step.after:
                if not 0 <= earlier < index or isinstance(schedule.steps[earlier], Drop | Boundary):
                    raise illegal("after", f"waiting for step {earlier}", index)
    if segments != len(graph.segments):
        raise illegal("boundaries", f"the end after {segments} of {len(graph.segments)} segments")


def _order(graph: Graph, schedule: Schedule) -> Order:
    streams: list[str] = []
    known: list[dict[str, int]] = []
    last: dict[str, int] = {}
    for index, step in enumerate(schedule.steps):
        match step:
            case Run():
                stream = graph.recipes[step.recipe].engine
            case Send():
                stream = f"copies to {step.memory}"
            case Fetch():
                stream = f"copies from {step.memory}"
            case Drop() | Boundary():
                stream = _COMPUTE
        done: dict[str, int] = {}
        waits = step.after if isinstance(step, Run | Send | Fetch | Drop) else ()
        for earlier in (*waits, *([last[stream]] if stream in last else [])):
            for name, step_there in (*known[earlier].items(), (streams[earlier], earlier)):
                done[name] = max(done.get(name, -1), step_there)
        streams.append(stream)
        known.append(done)
        last[stream] = index
    end = {**known[last[_COMPUTE]], _COMPUTE: last[_COMPUTE]} if _COMPUTE in last else {}
    return Order((*streams, _COMPUTE), (*known, end))


class _Walk:
    """The state between two steps: which value lives in which bytes of which memory, and what has happened."""

    def __init__(
        self, graph: Graph, schedule: Schedule, budget_B: int | None, host_budget_B: int | None = None
    ) -> None:
        self.graph = graph
        self.budget_B = budget_B
        self.host_budget_B = host_budget_B
        self.order = _order(graph, schedule)
        self.slots = effect_slots(graph)
        self.places = [r for r in graph.program if graph.recipes[r].effect is not Effect.PURE]
        self.done_places = 0
        self.parts = [value_parts(graph, v.id) for v in graph.values]
        self.segment = -1
        self.memories: dict[str, dict[int, Lifetime]] = {DEVICE: {}, HOST: {}}
        self.live_B = 0  # of every value in `device`
        self.host_B = 0  # of every value on the host, a host-resident one and what replaced it counted once
        self.device_lifetimes: list[Lifetime] = []
        self.lost: set[int] = set()  # values of the caller that were overwritten
        self.ran: set[int] = set()
        self.group_of = {r: g for g in graph.groups for o in g.options for r in o.recipes}
        for value in graph.values:
            if value.persistent:
                self._enter(value.id, value.memory, 0)
        self._count_host(0)

    @property
    def device(self) -> dict[int, Lifetime]:
        return self.memories[DEVICE]

    # steps

    def run(self, index: int, step: Run) -> None:
        recipe = self.graph.recipes[step.recipe]
        memory = HOST if recipe.engine == HOST_ENGINE else DEVICE
        there = self.memories[memory]
        self._may_run(index, recipe)
        for value in recipe.read_values:
            rule = "replay-state" if value == recipe.state and value not in there else "resident"
            self._read(index, value, memory, rule)
        self._may_keep(index, step, recipe, there)
        if self.budget_B is not None and memory == DEVICE:
            self._count(index, self._top_B(step, recipe))
        lifetimes = self._consume(index, step, recipe, memory)
        for value in step.keep:
            if value in lifetimes:
                lifetimes[value].writer = index
                there[value] = lifetimes[value]
                self._add_B(memory, self.graph.values[value].size_B)
            else:
                self._enter(value, memory, index, writer=index)
        self._count_host(index)

    def drop(self, index: int, step: Drop) -> None:
        value = self.graph.values[step.value]
        name = f"dropping {value_name(self.graph, value.id)}"
        if value.id not in self.memories.get(step.memory, {}):
            raise illegal("drop-absent", f"{name} from {step.memory!r}", index)
        base = self._place(value.id, step.memory)
        if (base.persistent and base.memory == step.memory) or (value.persistent and value.memory == step.memory):
            raise illegal("drop-persistent", name, index)
        if step.memory == value.memory and self._is_held(value):
            raise illegal("drop-handed-over", name, index)
        self._own_part(index, value.id)
        self._free(index, value.id, step.memory, index)

    def send(self, index: int, step: Send) -> None:
        if step.value not in self.device or step.value in self.memories.get(step.memory, {}):
            raise illegal("send", f"sending {value_name(self.graph, step.value)} to {step.memory!r}", index)
        self._own_part(index, step.value)
        self._read(index, step.value, DEVICE, "send")
        self._enter_place(index, self.graph.values[step.value], step.memory)
        self._count_host(index)

    def fetch(self, index: int, step: Fetch) -> None:
        if step.value not in self.memories.get(step.memory, {}) or step.value in self.device:
            raise illegal("fetch", f"fetching {value_name(self.graph, step.value)} from {step.memory!r}", index)
        self._own_part(index, step.value)
        self._read(index, step.value, step.memory, "fetch")
        self._enter(step.value, DEVICE, index, writer=index)
        self._count(index, self.live_B)

    def boundary(self, index: int, step: Boundary) -> None:
        self._leave(index)
        self.segment = step.segment
        for value in self.graph.values:
            hosted = value.persistent and value.memory != DEVICE
            if value.arrives == step.segment and value.id not in self.device and not hosted:
                self._enter(value.id, DEVICE, index)
        self._count(index, self.live_B)

    def end(self, index: int) -> None:
        """After the last step."""
        self._leave(index)
        if self.done_places < len(self.places):
            missing = recipe_name(self.graph, self.places[self.done_places])
            raise illegal("once", f"{missing} never running")
        for value in list(self.device):
            self.device.pop(value).stop = index

    # rules of a run

    def _may_run(self, index: int, recipe: Recipe) -> None:
        graph, name = self.graph, recipe_name(self.graph, recipe.id)
        if graph.segments[recipe.segment].part != graph.segments[self.segment].part:
            raise illegal("part", f"{name} in segment {self.segment}", index)
        base = recipe.segment
        if recipe.effect is not Effect.PURE:
            base = graph.recipes[self.places[self.slots[recipe.id]]].segment
        if self.segment < base or (recipe.effect is not Effect.PURE and self.segment != base):
            raise illegal("segment", f"{name} in segment {self.segment}", index)
        self.ran.add(recipe.id)
        if (group := self.group_of.get(recipe.id)) is not None:
            mine = self.ran & {r for option in group.options for r in option.recipes}
            if not any(mine <= set(option.recipes) for option in group.options):
                raise illegal("group", f"{name} of group {group.name!r}", index)
        if recipe.effect is not Effect.PURE:
            place = self.slots[recipe.id]
            if place < self.done_places:
                raise illegal("once", name, index)
            if place > self.done_places:
                before = recipe_name(graph, self.places[self.done_places])
                raise illegal("once-order", f"{name} before {before}", index)
            self.done_places += 1

    def _may_keep(self, index: int, step: Run, recipe: Recipe, there: dict[int, Lifetime]) -> None:
        if len(set(step.keep)) != len(step.keep):
            raise illegal("keep", f"{recipe_name(self.graph, recipe.id)} with a value twice", index)
        for value in step.keep:
            name = f"keeping {value_name(self.graph, value)}"
            if value not in recipe.outputs:
                raise illegal("keep", name, index)
            if value in there:
                raise illegal("keep-resident", name, index)
            if value in self.lost:
                raise illegal("consumed", name, index)

    def _consume(self, index: int, step: Run, recipe: Recipe, memory: str) -> dict[int, Lifetime]:
        """Ends the overwritten values and returns the bytes taken over, by the value that takes them."""
        passed: dict[int, Lifetime] = {}
        for takeover in recipe.consumes:
            value = self.graph.values[takeover.value]
            name = f"{recipe_name(self.graph, recipe.id)} overwriting {value_name(self.graph, value.id)}"
            heir = None if takeover.output is None else self.graph.values[recipe.outputs[takeover.output]]
            kept = heir is not None and heir.id in step.keep
            base = self._place(value.id, memory)
            if (base.persistent and base.memory == memory) or self._is_held(value):
                leaves = None if heir is None or not kept or not heir.held else heir.leaves
                if not {value.role, base.role} & _OVERWRITABLE or leaves is None or leaves < self.segment:
                    raise illegal("consume-visible", name, index)
            for other, there in self.memories.items():
                if other != memory and value.id in there and not (value.persistent and value.memory == other):
                    raise illegal("consume-copies", name, index)
            self._untouched(index, value.id, memory)
            if value.arrives is not None:
                self.lost.add(value.id)
            lifetime = self.memories[memory].pop(value.id)
            self._add_B(memory, -value.size_B)
            if heir is not None and kept:
                lifetime.tenant = heir.id
                passed[heir.id] = lifetime
            else:
                lifetime.stop = index + 1
        return passed

    # rules of values

    def _place(self, value: int, memory: str) -> Value:
        """The value that first lived in the bytes of one that is there: itself, or what was overwritten."""
        return self.graph.values[self.memories[memory][value].owner]

    def _is_held(self, value: Value) -> bool:
        return value.leaves is not None and value.leaves < self.segment and value.held

    def _own_part(self, index: int, value: int) -> None:
        if self.graph.segments[self.segment].part not in self.parts[value]:
            raise illegal("part", f"{value_name(self.graph, value)} in segment {self.segment}", index)

    def _read(self, index: int, value: int, memory: str, rule: str) -> None:
        name = f"reading {value_name(self.graph, value)}"
        there = self.memories.get(memory, {})
        if value not in there:
            raise illegal(rule, name, index)
        through = self.graph.values[value].readable_through
        if through is not None and self.segment > through:
            raise illegal("readable", name, index)
        self._written(index, value, memory)
        there[value].users.append(index)

    def _written(self, index: int, value: int, memory: str) -> None:
        writer = self.memories[memory][value].writer
        if writer is not None and not self.order.done(writer, index):
            raise illegal("in-flight", f"{value_name(self.graph, value)}, written by step {writer},", index)

    def _untouched(self, index: int, value: int, memory: str) -> None:
        for user in self.memories[memory][value].users:
            if user != index and not self.order.done(user, index):
                what = f"{value_name(self.graph, value)} in {memory!r}, used by step {user},"
                raise illegal("freed-in-flight", what, index)

    def _enter(self, value: int, memory: str, start: int, writer: int | None = None) -> None:
        if value in self.lost:
            raise illegal("consumed", value_name(self.graph, value), start)
        users = [] if writer is None else [writer]
        lifetime = Lifetime(value, value, self.graph.values[value].size_B, start, None, writer, users)
        self.memories.setdefault(memory, {})[value] = lifetime
        self._add_B(memory, lifetime.size_B)
        if memory == DEVICE:
            self.device_lifetimes.append(lifetime)

    def _enter_place(self, index: int, value: Value, memory: str) -> None:
        """A copy arrives in another memory; in the storage of what the value replaces, if that is there."""
        old = value.replaces
        if old is not None and old in self.memories.get(memory, {}):
            self._untouched(index, old, memory)
            self._add_B(memory, -self.graph.values[old].size_B)
            self.lost.add(old)
            lifetime = self.memories[memory].pop(old)
            lifetime.tenant, lifetime.writer = value.id, index
            lifetime.users.append(index)
            self.memories[memory][value.id] = lifetime
            self._add_B(memory, value.size_B)
        else:
            self._enter(value.id, memory, index, writer=index)

    def _add_B(self, memory: str, size_B: int) -> None:
        if memory == DEVICE:
            self.live_B += size_B
        elif memory == HOST:
            self.host_B += size_B

    def _free(self, index: int, value: int, memory: str, stop: int) -> None:
        self._untouched(index, value, memory)
        self.memories[memory].pop(value).stop = stop
        self._add_B(memory, -self.graph.values[value].size_B)

    def _leave(self, index: int) -> None:
        """The running segment returns to the caller."""
        for value in self.graph.values:
            if self.segment < 0 or value.leaves != self.segment:
                continue
            if value.id not in self.memories.get(value.memory, {}):
                raise illegal("leave", value_name(self.graph, value.id), index)
            self._written(index, value.id, value.memory)
            if value.memory == DEVICE and not (value.held or value.persistent):
                self._free(index, value.id, DEVICE, index)
        for value in self.graph.values:
            if value.readable_through == self.segment and value.id in self.device:
                self._untouched(index, value.id, DEVICE)  # the caller overwrites it now

    # bytes

    def _top_B(self, step: Run, recipe: Recipe) -> int:
        """Most bytes at once while the recipe runs, following its trace event by event."""
        live_B = self.live_B
        if recipe.state is not None and (recipe.effect is Effect.PURE or recipe.state in step.keep):
            live_B += self.graph.values[recipe.state].size_B
        top_B, allocations = live_B, []
        for event in recipe.trace.events:
            if event >= 0:
                allocations.append(event)
                live_B += event
            else:
                live_B -= allocations[-event - 1]
            top_B = max(top_B, live_B)
        return top_B + recipe.trace.workers_B

    def _count_host(self, index: int) -> None:
        if self.host_budget_B is not None and self.host_B > self.host_budget_B:
            raise illegal("host-budget", f"{self.host_B} B of {self.host_budget_B} B", index)

    def _count(self, index: int, top_B: int) -> None:
        if self.budget_B is not None and top_B > self.budget_B:
            raise illegal("budget", f"{top_B} B of {self.budget_B} B", index)
