"""Every step of a schedule that offloads values, issued one after another: the walk behind `transfers.py`.

At each place, in this order: what has to be sent by now, and what may be; what has to come back, or is kept because it
is still there; what has to be freed for the run to fit; what should be on its way. Its clock is that of
`lowtide.ir.simulate`.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lowtide.ir.graph import Graph
from lowtide.ir.schedule import HOST, Boundary, Drop, Fetch, Run, Send, Step
from lowtide.planners.offload.absences import NEVER_THERE, Absences, Anchor
from lowtide.planners.offload.movement import Rates

_LOOKED_AT = 12  # fetches that are due by now and do not fit, per place
_LAST = 1 << 60


class Dispatch:
    """One walk over the places, in which everything is issued.

    Invariant: at place p, `live_B` is what is on the device; `free_B[q]` for q >= p is the most that will be there at q
    if nothing but what has been issued is copied otherwise than naively, and, roughly, what will still be in progress.

    Arguments:
        starts: when each run will probably start.
        kept: copies that are not made: their values are kept.
        ended_by_fetch: absences that end with a fetch, as far as is known; None for all.
    """

    def __init__(
        self,
        graph: Graph,
        found: Absences,
        rates: Rates,
        budget_B: int,
        host_budget_B: int | None,
        starts: Sequence[float],
        kept: frozenset[int],
        ended_by_fetch: frozenset[int] | None,
    ) -> None:
        self.graph, self.found, self.rates = graph, found, rates
        self.budget_B, self.host_budget_B = budget_B, host_budget_B
        self.plan, self.kept = starts, kept
        self.size_B = [v.size_B for v in graph.values]
        self.steps: list[Step] = []
        self.starts: list[float] = []
        self.now_s = self.to_free_s = self.from_free_s = self.host_free_s = 0.0
        self.live_B, self.host_now_B = found.start_B, found.host_start_B
        self.free_B: NDArray[np.int64] = found.free_B.copy()
        self.host_B: NDArray[np.int64] = found.host_B.copy()
        self.made_s = [0.0] * len(found.copies)  # per copy, when it is on the host
        self.is_made = [c.due is None for c in found.copies]
        self.done_s: dict[int, float] = {}  # per copy, when it has last been read there
        self.came_s: dict[int, float] = {}  # fetched value -> when
        self.is_there = [a.leave != NEVER_THERE for a in found.absences]
        self.is_settled = [False] * len(found.absences)  # fetched, or kept
        self.fetched: set[int] = set()
        self._index(ended_by_fetch)

    def _index(self, ended_by_fetch: frozenset[int] | None) -> None:
        found, count = self.found, len(self.found.anchors) + 1
        self.leaving: list[list[int]] = [[] for _ in range(count)]
        self.returning: list[list[int]] = [[] for _ in range(count)]
        self.open: dict[int, int] = {}  # per copy, absences that have not ended
        ends: list[tuple[int, int]] = []
        for i, a in enumerate(found.absences):
            if a.copy in self.kept:
                self.is_settled[i] = True
                self.free_B[a.leave : a.back] += self.size_B[a.value]
                continue
            if a.leave != NEVER_THERE:
                self.leaving[a.leave].append(i)
            if a.back is not None:
                self.returning[a.back].append(i)
                self.open[a.copy] = self.open.get(a.copy, 0) + 1
                if ended_by_fetch is None or i in ended_by_fetch or a.leave == NEVER_THERE:
                    ends.append((a.back, i))
        self.latest_s = self._deadlines(sorted(ends))
        made = ((c.earliest, i) for i, c in enumerate(found.copies) if c.due is not None and i not in self.kept)
        self.sends = sorted(made)
        self.next_send = 0
        self.to_send: list[tuple[int, int]] = []  # (due, copy)
        self.sent: list[tuple[float, int]] = []  # (when its copy is made, absence) of what waits to be freed
        self.spare: list[tuple[int, int]] = []  # (-back, absence) of what may be freed at once
        self.coming = [(self.latest_s.get(i, 0.0), i) for i, a in enumerate(found.absences) if a.leave == NEVER_THERE]
        heapq.heapify(self.coming)
        self.due: list[tuple[int, int]] = []  # (back, absence) of what should be on its way
        self.gone: list[tuple[float, int]] = []  # (when nobody reads it any more, copy) of what the host may drop
        self.on_host: dict[int, int] = {}  # value -> its copy, if it is to be dropped some day
        self.made_at: dict[int, list[int]] = {}
        for i, c in enumerate(found.copies):
            if c.due is None and c.earliest > 0:
                self.made_at.setdefault(c.earliest - 1, []).append(i)
        self.leaving_at: dict[int, list[int]] = {}
        for value in self.graph.values:
            if value.leaves is not None:
                self.leaving_at.setdefault(value.leaves, []).append(value.id)
        self.dead: dict[int, int] = {}  # value -> its absence, that does not end
        self.parts = [s.part for s in self.graph.segments]

    def _deadlines(self, ends: Sequence[tuple[int, int]]) -> dict[int, float]:
        """The latest start of each fetch for which all of them come in time."""
        latest: dict[int, float] = {}
        next_s = float("inf")
        for back, i in reversed(ends):
            next_s = min(next_s, self.plan[back]) - self.rates.fetch_s(self.size_B[self.found.absences[i].value])
            latest[i] = next_s
        return latest

    # the walk

    def run(self) -> bool:
        """Issues everything; False where bytes do not suffice, which the naive schedule then does no better."""
        anchors = self.found.anchors
        segment = -1
        for p in range(len(anchors) + 1):
            last = p == len(anchors)
            anchor = None if last else anchors[p]
            self.end_s = self.now_s + (anchor.time_s if anchor is not None and anchor.computes else 0.0)
            inner_B = 0 if anchor is None else anchor.inner_B
            if not self._send(p, segment):
                return False
            self._leave(p)
            for v in anchor.step.keep if anchor is not None and isinstance(anchor.step, Run) else ():
                if v in self.dead:  # recomputed before its first bytes were freed
                    self._give_up(self.dead[v])
            if not (self._return(p) and self._make_free(self.budget_B - inner_B)):
                return False
            if anchor is not None:
                self._wait_for(anchor)
                self._send(p, segment)
                self._prefetch(p, segment, inner_B)
            if last or isinstance(anchors[p].step, Boundary):
                self._end_segment(segment, None if last else anchors[p].segment)
            if anchor is not None:
                self._pass(p)
                segment = anchor.segment
        self._finish()
        self.starts.append(self.now_s)
        return True

    @property
    def time_s(self) -> float:
        """Of all engines."""
        return max(self.now_s, self.to_free_s, self.from_free_s, self.host_free_s)

    @property
    def needless(self) -> frozenset[int]:
        """Copies that nobody read, with those that were not made."""
        used = {self.found.absences[i].copy for i in self.fetched}
        needless = (
            i
            for i, c in enumerate(self.found.copies)
            if c.due is not None and not c.host_resident and not c.readers and c.absences and i not in used
            and all(self.found.absences[a].back is not None for a in c.absences)
        )  # fmt: skip
        return frozenset(needless)

    @property
    def ended_by_fetch(self) -> frozenset[int]:
        """Absences that ended with a fetch."""
        return frozenset(self.fetched)

    def _wait_for(self, anchor: Anchor) -> None:
        """When the run behind a place will end: after that there is another chance to issue copies."""
        start_s = self.now_s
        if anchor.computes:
            for v in anchor.reads:
                start_s = max(start_s, self.came_s.get(v, 0.0))
        self.end_s = start_s + (anchor.time_s if anchor.computes else 0.0)

    def _pass(self, p: int) -> None:
        """A run, or a boundary, and what is freed behind it."""
        anchor = self.found.anchors[p]
        recipe = anchor.recipe
        if recipe is None:
            self.starts.append(self.now_s)
        elif anchor.computes:
            for takeover in recipe.consumes:
                if takeover.value in self.on_host:
                    self._drop_copy(self.on_host[takeover.value])
            start_s = self.now_s
            for v in anchor.reads:
                start_s = max(start_s, self.came_s.get(v, 0.0))
            self.starts.append(start_s)
            self.now_s = start_s + recipe.time_s
        else:
            self.starts.append(self.now_s)
            self._run_there(p)
        self.steps.append(anchor.step)
        self.live_B += anchor.change_B
        self.host_now_B += anchor.host_change_B
        for v in anchor.drops:
            self.steps.append(Drop(v))
            self.live_B -= self.size_B[v]
        if recipe is not None and not anchor.computes:
            overwritten = {t.value for t in recipe.consumes}
            for v in overwritten:
                self.on_host.pop(v, None)
            for v in recipe.read_values:
                if v not in overwritten:
                    self._read_there(p, v)

    def _run_there(self, p: int) -> None:
        """A run on the host."""
        recipe = self.found.anchors[p].recipe
        assert recipe is not None
        start_s = max(self.now_s, self.host_free_s)
        for i, c in enumerate(self.found.copies):
            if p in c.readers:
                start_s = max(start_s, self.made_s[i], self.done_s.get(i, 0.0))
        self.host_free_s = start_s + recipe.time_s
        for i in self.made_at.get(p, ()):
            self.made_s[i] = self.host_free_s

    def _read_there(self, p: int, value: int) -> None:
        for i, c in enumerate(self.found.copies):
            if c.value == value and p in c.readers:
                self.done_s[i] = self.host_free_s
                if p == c.readers[-1] and not self.open.get(i):
                    self._let_go(i)

    # copies to the host

    def _send(self, p: int, segment: int) -> bool:
        while self.next_send < len(self.sends) and self.sends[self.next_send][0] <= p:
            i = self.sends[self.next_send][1]
            heapq.heappush(self.to_send, (self.found.copies[i].due or 0, i))
            self.next_send += 1
        while self.to_send:
            due, i = self.to_send[0]
            forced = due <= p
            if not forced and (self.to_free_s >= self.end_s or not self._may_send(p, due, i, segment)):
                break
            if not self._free_there(self.size_B[self.found.copies[i].value], forced=forced):
                if forced:
                    return False
                break
            heapq.heappop(self.to_send)
            self._send_one(p, due, i)
        return True

    def _may_send(self, p: int, due: int, copy: int, segment: int) -> bool:
        if len(set(self.parts)) > 1 and segment != self.found.anchors[due - 1].segment:
            return False
        if self.host_budget_B is None:
            return True
        size_B = self._adds_B(copy)
        return int(self.host_B[p:due].max(initial=0)) + size_B <= self.host_budget_B

    def _adds_B(self, copy: int) -> int:
        """Host bytes that a copy takes on top of what is there: none where it takes the place of another value."""
        value = self.found.copies[copy].value
        return 0 if self.graph.values[value].replaces is not None else self.size_B[value]

    def _free_there(self, size_B: int, *, forced: bool) -> bool:
        """Frees host bytes, if need be by waiting."""
        if self.host_budget_B is None:
            return True
        while self.host_now_B + size_B > self.host_budget_B:
            if not self.gone or (self.gone[0][0] > self.now_s and not forced):
                return False
            self._drop_copy(heapq.heappop(self.gone)[1])
        return True

    def _send_one(self, p: int, due: int, i: int) -> None:
        copy = self.found.copies[i]
        size_B = self.size_B[copy.value]
        start_s = max(self.now_s, self.to_free_s, self.came_s.get(copy.value, 0.0))
        self.made_s[i] = self.to_free_s = start_s + self.rates.send_s(size_B)
        self.is_made[i] = True
        self.steps.append(Send(copy.value, HOST))
        if due > p:
            self.host_B[p:due] += self._adds_B(i)
        self.host_now_B += self._adds_B(i)
        if not copy.host_resident:
            self.on_host[copy.value] = i
        for k in copy.absences[:1]:  # until then its bytes are not free, whatever the naive schedule says
            a = self.found.absences[k]
            late = bisect.bisect_left(self.plan, self.made_s[i] - (self.now_s - self.plan[p]))
            until = min(late, len(self.free_B) if a.back is None else a.back)
            if until > a.leave:
                self.free_B[a.leave : until] += size_B

    def _let_go(self, i: int) -> None:
        copy = self.found.copies[i]
        if copy.host_resident or (copy.value not in self.on_host and copy.until is None):
            return
        self.on_host[copy.value] = i
        heapq.heappush(self.gone, (max(self.made_s[i], self.done_s.get(i, 0.0)), i))

    def _drop_copy(self, i: int) -> None:
        value = self.found.copies[i].value
        if self.on_host.get(value) != i:
            return
        del self.on_host[value]
        self.now_s = max(self.now_s, self.made_s[i], self.done_s.get(i, 0.0))
        self.steps.append(Drop(value, HOST))
        self.host_now_B -= self.size_B[value]

    # bytes of the device

    def _leave(self, p: int) -> None:
        for i in self.leaving[p]:
            a = self.found.absences[i]
            heapq.heappush(self.sent, (self.made_s[a.copy] if self.is_made[a.copy] else float("inf"), i))
            if a.back is None:
                self.dead[a.value] = i
            else:
                heapq.heappush(self.coming, (self.latest_s.get(i, self.plan[a.back]), i))

    def _make_free(self, most_B: int, *, forced: bool = True) -> bool:
        """Frees what may go until at most so much is live."""
        while self.live_B > most_B:
            while self.sent and self.sent[0][0] <= self.now_s:
                _, i = heapq.heappop(self.sent)
                back = self.found.absences[i].back
                heapq.heappush(self.spare, (-_LAST if back is None else -back, i))
            if self.spare:
                self._give_up(heapq.heappop(self.spare)[1])
            elif forced and self.sent:
                self._give_up(heapq.heappop(self.sent)[1])
            else:
                return False
        return True

    def _give_up(self, i: int) -> None:
        a = self.found.absences[i]
        if self.is_settled[i] or not self.is_there[i]:
            return
        self.now_s = max(self.now_s, self.made_s[a.copy])
        self.is_there[i] = False
        self.dead.pop(a.value, None)
        self.steps.append(Drop(a.value))
        self.live_B -= self.size_B[a.value]

    # copies from the host

    def _return(self, p: int) -> bool:
        due = [i for i in self.returning[p] if not self.is_settled[i]]
        for i in due:
            if self.is_there[i]:
                self._keep(p, i)
        for i in due:
            if not self.is_settled[i]:
                if not self._make_free(self.budget_B - self.size_B[self.found.absences[i].value]):
                    return False
                self._fetch(p, i)
        return True

    def _prefetch(self, p: int, segment: int, inner_B: int) -> None:
        while self.coming and self.coming[0][0] < self.plan[p + 1]:
            i = heapq.heappop(self.coming)[1]
            back = self.found.absences[i].back
            if back is not None and back > p:
                heapq.heappush(self.due, (back, i))
        put_off: list[tuple[int, int]] = []
        while self.due and len(put_off) < _LOOKED_AT:
            back, i = heapq.heappop(self.due)
            if back > p and not self.is_settled[i] and not self._bring(p, segment, inner_B, back, i):
                put_off.append((back, i))
        for item in put_off:
            heapq.heappush(self.due, item)

    def _bring(self, p: int, segment: int, inner_B: int, back: int, i: int) -> bool:
        a = self.found.absences[i]
        size_B = self.size_B[a.value]
        if self.found.anchors[back - 1].segment != segment or not self.is_made[a.copy]:
            return False
        if int(self.free_B[p:back].max()) + size_B > self.budget_B:
            return False
        if self.is_there[i]:
            self._keep(p, i)
            return True
        if self.from_free_s >= self.end_s:  # it would only wait, on bytes that others could use
            return False
        if not self._make_free(self.budget_B - inner_B - size_B, forced=False):
            return False
        self._fetch(p, i)
        return True

    def _keep(self, p: int, i: int) -> None:
        a = self.found.absences[i]
        self.is_settled[i] = True
        self.free_B[p : a.back] += self.size_B[a.value]
        self._end(i)

    def _fetch(self, p: int, i: int) -> None:
        a = self.found.absences[i]
        size_B = self.size_B[a.value]
        self.is_settled[i] = True
        self.fetched.add(i)
        self.free_B[p : a.back] += size_B
        self.live_B += size_B
        start_s = max(self.now_s, self.from_free_s, self.made_s[a.copy])
        self.came_s[a.value] = self.from_free_s = start_s + self.rates.fetch_s(size_B)
        self.done_s[a.copy] = max(self.from_free_s, self.done_s.get(a.copy, 0.0))
        self.steps.append(Fetch(a.value, HOST))
        self._end(i)

    def _end(self, i: int) -> None:
        copy = self.found.absences[i].copy
        self.open[copy] -= 1
        if not self.open[copy] and not self.found.copies[copy].readers:
            self._let_go(copy)

    # ends

    def _end_segment(self, segment: int, after: int | None) -> None:
        """What the caller finds has to be there."""
        for v in self.leaving_at.get(segment, ()):
            if v in self.dead:
                self._give_up(self.dead[v])
            if v in self.came_s and v in self.on_host and not self.open.get(self.on_host[v]):
                self._drop_copy(self.on_host[v])
        if after is not None and segment >= 0 and self.parts[after] != self.parts[segment]:
            for _, i in (*self.spare, *self.sent):
                self._give_up(i)
            self.spare, self.sent = [], []
            self._drop_copies()

    def _finish(self) -> None:
        for i in list(self.dead.values()):
            self._give_up(i)
        self._drop_copies()

    def _drop_copies(self) -> None:
        while self.gone:
            self._drop_copy(heapq.heappop(self.gone)[1])
