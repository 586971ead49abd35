"""What a plan offloads to the host, and where it expects compute to wait, as the simulator says.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lowtide.ir.plan import PlanRecord
from lowtide.ir.schedule import DEVICE, HOST, Drop, Fetch, Run, Schedule, Send, memory_of
from lowtide.ir.simulate import COMPUTE, simulate
from lowtide.units import format_B, format_Bps, format_percent, format_s


@dataclass(frozen=True, slots=True)
class Movement:
    """One step's copies to the host and back.

    Arguments:
        sent, fetched: copies to the host, and back.
        sent_B, fetched_B: their bytes.
        to_host_s, from_host_s: how long each direction of the link is busy.
        stalled_s: how long compute waits for copies.
        stalls_s: the same by value.
        time_s: of the step.
        host_peak_B: most bytes on the host at once, host-resident values included.
        host_resident: values that live on the host; `host_resident_B` their bytes.
        host_runs: operators that run on the host.
    """

    sent: int = 0
    fetched: int = 0
    sent_B: int = 0
    fetched_B: int = 0
    to_host_s: float = 0.0
    from_host_s: float = 0.0
    stalled_s: float = 0.0
    stalls_s: tuple[tuple[int, float], ...] = ()
    time_s: float = 0.0
    host_peak_B: int = 0
    host_resident: int = 0
    host_resident_B: int = 0
    host_runs: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is offloaded, and nothing lives or runs on the host."""
        return not (self.sent or self.fetched or self.host_resident or self.host_runs)


def movement(record: PlanRecord) -> Movement:
    """Reads off a plan what it offloads.

    Arguments:
        record: a legal plan; without links its copies take no time.

    O(steps).
    """
    graph, steps = record.graph, record.schedule.steps
    sends = [s.value for s in steps if isinstance(s, Send)]
    fetches = [s.value for s in steps if isinstance(s, Fetch)]
    on_host = [s for s in steps if isinstance(s, Run) and memory_of(graph.recipes[s.recipe].engine) != DEVICE]
    host_resident = [v.size_B for v in graph.values if v.persistent and v.memory == HOST]
    if not (sends or fetches or on_host or host_resident):
        return Movement()
    timeline = simulate(graph, record.schedule, record.machine)
    busy_s: Counter[type] = Counter()
    for instant, step in zip(timeline.instants, steps, strict=True):
        busy_s[type(step)] += instant.stop_s - instant.start_s  # type: ignore[assignment]
    starts_s = [(m.start_s, m.stop_s) if m.engine == COMPUTE else None for m in timeline.instants]
    stalls_s = _stalls_s(record.schedule, starts_s, [m.stop_s for m in timeline.instants])
    return Movement(
        sent=len(sends),
        fetched=len(fetches),
        sent_B=sum(graph.values[v].size_B for v in sends),
        fetched_B=sum(graph.values[v].size_B for v in fetches),
        to_host_s=busy_s[Send],
        from_host_s=busy_s[Fetch],
        stalled_s=sum(stalls_s.values()),
        stalls_s=tuple(sorted(stalls_s.items())),
        time_s=timeline.time_s,
        host_peak_B=dict(timeline.memory_peaks_B).get(HOST, 0),
        host_resident=len(host_resident),
        host_resident_B=sum(host_resident),
        host_runs=len(on_host),
    )


def _stalls_s(
    schedule: Schedule, compute_s: list[tuple[float, float] | None], stops_s: list[float]
) -> dict[int, float]:
    """How long compute waits for the copies of each value: before it goes on, it stood still."""
    found: dict[int, float] = {}
    free_s = 0.0
    arriving: dict[int, int] = {}  # value -> the step that brings it to the device
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Fetch):
            arriving[step.value] = index
        here = compute_s[index]
        if here is None:
            continue
        lost_s = here[0] - free_s
        free_s = here[1]
        if lost_s <= 0.0 or not isinstance(step, Run | Drop):
            continue
        waited = [*step.after, *arriving.values()]
        copies = [i for i in waited if isinstance(schedule.steps[i], Send | Fetch) and stops_s[i] <= here[0]]
        if copies:
            late = schedule.steps[max(copies, key=lambda i: stops_s[i])]
            assert isinstance(late, Send | Fetch)
            found[late.value] = found.get(late.value, 0.0) + lost_s
    return found


def describe_movement(record: PlanRecord) -> str:
    """What a plan offloads, in a few lines; empty where it offloads nothing."""
    found = movement(record)
    if found.is_empty:
        return ""
    lines = [
        f"{found.sent} copies to the host, {format_B(found.sent_B)}; {found.fetched} back, {format_B(found.fetched_B)}"
    ]
    if record.links:
        rates = ", ".join(f"{link.source} to {link.target} {format_Bps(link.rate_Bps)}" for link in record.links)
        shares = [s / found.time_s if found.time_s else 0.0 for s in (found.to_host_s, found.from_host_s)]
        lines.append(f"{rates}; busy {format_percent(shares[0])} and {format_percent(shares[1])} of the step")
        lines.append(f"compute waits {format_s(found.stalled_s)}")
    if found.host_resident:
        lines.append(f"{found.host_resident} values live on the host, {format_B(found.host_resident_B)}")
    if found.host_runs:
        lines.append(f"{found.host_runs} operators run on the host")
    budget = "" if record.host_budget_B is None else f" of {format_B(record.host_budget_B)}"
    lines.append(f"{format_B(found.host_peak_B)}{budget} on the host at most")
    return "\n".join(lines)
