"""Looks up plans of earlier shapes and earlier processes: the very plan, or one to begin a search from.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from lowtide.errors import InfeasibleBudget, PlanError, PlanFileError
from lowtide.ir.check import check
from lowtide.ir.graph import Graph
from lowtide.ir.housing import housed
from lowtide.ir.likeness import memory, shapes, size_B, structure
from lowtide.ir.plan import PlanRecord, Status
from lowtide.pipeline import measure
from lowtide.plan_cache.key import (
    CacheKey,
    cache_key_of,
    header_of,
    host_options_of,
    least_of,
    manner_of,
    revived,
)
from lowtide.plan_cache.store import PlanCache
from lowtide.planners.base import Watch
from lowtide.profile.cache import ProfileCache
from lowtide.record import Constraints, PlanOptions, PlanRequest, Start, carried_over, make_record

_LOG = logging.getLogger("lowtide")
T = TypeVar("T")
_KEPT = 64  # shapes of one program that are remembered, and programs
_LEAST = "smallest budget"  # plans for it begin no other shape's


@dataclass(eq=False)
class PlanLookup:
    """Measured graphs and plans of this session, and plans on disk.

    Arguments:
        plans: on disk.
    """

    plans: PlanCache = field(default_factory=PlanCache)
    _graphs: dict[str, dict[str, Graph]] = field(default_factory=dict)  # by program and key
    _records: dict[str, dict[str, PlanRecord]] = field(default_factory=dict)
    # Plans for the smallest budgets that were named.
    _least: dict[tuple[str, str, Constraints], PlanRecord] = field(default_factory=dict)
    _answers: dict[str, PlanRecord] = field(default_factory=dict)  # this session's, by cache key

    def measure(self, graph: Graph, held: Sequence[Any], options: PlanOptions, cache: ProfileCache) -> Graph:
        """Measures a graph: quickly, where another shape of the same program has been measured in this session."""
        program = structure(graph)
        quick = options.shape_limit_s is not None
        like = _nearest(graph, self._graphs.get(program, {}).values()) if quick else None
        measured = measure(graph, held, options.machine, cache, like, scaled=quick)
        _remember(self._graphs, program, measured, measured.key)
        return measured

    def plan(self, request: PlanRequest, watch: Watch | None) -> PlanRecord:
        """The plan for a request: from the disk, or made and kept there.

        Raises:
            InfeasibleBudget: if no plan fits; nothing has been run.
        """
        searched = cache_key_of(request)
        record = None if searched is None else self._recall(searched, request)
        start = None
        if record is None and request.options.shape_limit_s is not None:
            limit_s = request.options.shape_limit_s
            begun = cache_key_of(request, limit_s)
            record = None if begun is None else self._recall(begun, request)
            start = None if record is not None else self._start(request, limit_s)
            searched = searched if start is None else begun
        if record is None:
            record = self._made(request, watch, start)
            if searched is not None:
                self._keep(searched, request, record)
        if searched is not None:
            _remember(self._records, structure(request.graph), record, record.graph.key)
        return record

    def forget_plans(self) -> None:
        """Begins from none of this session's plans any more: they were made for another budget."""
        self._records.clear()

    def _made(self, request: PlanRequest, watch: Watch | None, start: Start | None) -> PlanRecord:
        """A plan that was not known; what is named where there is none is remembered with the plan that shows it."""
        here = (memory(request.graph), host_options_of(request.options), replace(request.constraints, ceiling_B=None))
        near = [record for (*there, _), record in self._least.items() if there == [*here[:2]]]
        known = self._least.get(here) or self._least_on_disk(request) or (near[-1] if near else None)
        try:
            return make_record(request, watch=watch, start=start, known=known)
        except InfeasibleBudget as error:
            if isinstance(error.proof, PlanRecord):
                self._least[here] = error.proof
                _shorten(self._least)
                cache_key = least_of(request)
                if cache_key is not None:
                    self.plans.put(header_of(cache_key, error.proof, _LEAST), error.proof)
            raise

    def _least_on_disk(self, request: PlanRequest) -> PlanRecord | None:
        cache_key = least_of(request)
        record = None if cache_key is None else self.plans.get(cache_key.program, cache_key.key)
        if cache_key is None or record is None:
            return None
        try:
            if memory(record.graph) != cache_key.memory:
                raise PlanFileError("it is for other bytes than its name says")
            return carried_over(
                record,
                request.graph,
                constraints=request.constraints,
                budget_B=record.budget_B,
                covers=request.covers,
                environment=request.environment,
                any_numbers=True,
            )
        except PlanError as error:
            self.plans.discard(cache_key.program, cache_key.key, str(error))
            return None

    def _recall(self, cache_key: CacheKey, request: PlanRequest) -> PlanRecord | None:
        record = self._answers.get(cache_key.key) or self.plans.get(cache_key.program, cache_key.key)
        if record is None:
            return None
        try:
            if cache_key.budget_B not in (0, record.budget_B):
                raise PlanFileError("it is for another budget than its name says")
            found = revived(record, request)
        except PlanError as error:
            self._answers.pop(cache_key.key, None)
            self.plans.discard(cache_key.program, cache_key.key, str(error))
            return None
        _LOG.info("a plan from the cache (%s)%s", cache_key.key, "" if found else ": the seconds have changed too much")
        return found

    def _keep(self, cache_key: CacheKey, request: PlanRequest, record: PlanRecord) -> None:
        """Keeps a plan, unless Ctrl-C cut its search short: nobody asked for that one."""
        if record.outcome.status is not Status.INTERRUPTED:
            self._answers[cache_key.key] = record
            _shorten(self._answers)
            self.plans.put(header_of(cache_key, record, _neighbourhood(cache_key, request)), record)

    def _start(self, request: PlanRequest, limit_s: float) -> Start | None:
        """The plan for the nearest shape: this session's (perhaps for fewer bytes), or one on the disk for another."""
        graph, program = request.graph, structure(request.graph)
        records = {id(r.graph): r for r in self._records.get(program, {}).values()}
        near = _nearest(graph, [r.graph for r in records.values()])
        record = self._on_disk(request) if near is None else records[id(near)]
        if record is None:
            return None
        return Start(schedule=record.schedule, shapes=shapes(record.graph), limit_s=limit_s)

    def _on_disk(self, request: PlanRequest) -> PlanRecord | None:
        """The plan for the nearest other shape that was asked for in the same manner."""
        cache_key = cache_key_of(request)
        if cache_key is None:
            return None
        program, here = cache_key.program, size_B(request.graph)
        place = _neighbourhood(cache_key, request)
        entries = [e for e in self.plans.shapes_of(program) if e.about.environment == place]
        nearest = min(entries, key=lambda e: _distance(here, e.about.size_B), default=None)
        record = None if nearest is None else self.plans.get(program, nearest.about.key)
        if nearest is None or record is None or memory(record.graph) == cache_key.memory:
            return None
        try:
            if structure(record.graph) != program:
                raise PlanFileError("it is for another program than its name says")
            # Ids are the same, and what is legal in one shape is so in every other.
            check(housed(request.graph, record.outcome.hosted), record.schedule)
        except PlanError as error:
            self.plans.discard(program, nearest.about.key, str(error))
            return None
        return record


def _neighbourhood(cache_key: CacheKey, request: PlanRequest) -> str:
    """What plans for different shapes have in common when one may begin from the other."""
    facts = f"{cache_key.place} {manner_of(request.options, None)} {request.constraints.enforced}"
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _nearest(graph: Graph, others: Iterable[Graph]) -> Graph | None:
    """The graph whose values take the most similar number of bytes; None if there is none."""
    here_B = size_B(graph)
    return min(others, key=lambda other: _distance(here_B, size_B(other)), default=None)


def _distance(one_B: int, other_B: int) -> float:
    return abs(math.log((one_B + 1) / (other_B + 1)))


def _remember(known: dict[str, dict[str, T]], program: str, item: T, key: str) -> None:
    items = known.setdefault(program, {})
    items.setdefault(key, item)
    _shorten(items)
    _shorten(known)


def _shorten(known: dict[Any, Any]) -> None:
    """Forgets what has been known for longest, where that is more than is kept."""
    while len(known) > _KEPT:
        known.pop(next(iter(known)))
